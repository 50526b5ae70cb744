package supervisor

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The shim is started once an execution: its dependencies and size are a budget.
func TestShimStaysSmall(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "skerry.internal/cmd/runnerd-shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{
		"skerry.internal/cmd/runnerd-shim":   true,
		"skerry.internal/sandbox/supervisor": true,
		"skerry.internal/sandbox/diskquota":  true,
		"golang.org/x/sys/unix":              true,
	}
	for _, pkg := range strings.Fields(string(out)) {
		if !allowed[pkg] {
			t.Errorf("the shim depends on %s; it may on the standard library and x/sys only", pkg)
		}
	}
	out, err = exec.CommandContext(t.Context(), "go", "list", "-deps", "skerry.internal/cmd/runnerd-shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		if pkg == "net" || pkg == "os/user" || pkg == "crypto/tls" {
			t.Errorf("the shim depends on %s, which costs start-up time", pkg)
		}
	}
	info, err := os.Stat(shimBinary)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("size of the shim: %d KiB", info.Size()>>10)
	if info.Size() > 6<<20 {
		t.Errorf("the shim has %d bytes, want at most 6 MiB", info.Size())
	}
}
