package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkSupervise is one execution of true, from Start to a durable verdict.
func BenchmarkSupervise(b *testing.B) {
	b.Run("cold", func(b *testing.B) { benchmarkStart(b, 0) })
	b.Run("warm", func(b *testing.B) { benchmarkStart(b, 2) })
}

func benchmarkStart(b *testing.B, warm int) {
	f := newFixture(b, "true")
	l := NewLauncher(shimBinary, warm)
	defer l.Close()
	base := f.dir
	for i := 0; b.Loop(); i++ {
		dir := filepath.Join(base, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		h, err := l.Start(b.Context(), dir, f.spec)
		if err != nil {
			b.Fatal(err)
		}
		exit, err := h.Wait(b.Context())
		if err != nil || exit.Kind != KindExited {
			b.Fatalf("%+v, %v", exit, err)
		}
	}
}

// BenchmarkRawBwrap is the same sandbox by bubblewrap alone.
func BenchmarkRawBwrap(b *testing.B) {
	f := newFixture(b, "true")
	options := strings.ReplaceAll(strings.Join(f.spec.Files[0].Args, "\x00"), "--ro-bind-fd\x00{fd:shim}", "--ro-bind\x00"+shimBinary)
	options = strings.ReplaceAll(options, "--bind-fd\x00{fd:workspace}", "--bind\x00/tmp")
	args := append(strings.Split(options, "\x00"), "--", "true")
	if err := os.Chmod(filepath.Dir(shimBinary), 0o755); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		cmd := exec.Command("bwrap", args...)
		if c := f.spec.Credential; c != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.UID, Gid: c.GID}}
			cmd.Dir = "/"
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}
