package prometheus

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const operations = "../../docs/operations.md"

// promtool checks and tests the files with Prometheus' own means.
func TestPromtool(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" {
			t.Fatalf("%v: make setup installs it", err)
		}
		t.Skipf("%v: Debian's package prometheus has it", err)
	}
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "rules/skerry.yml"}, {"test", "rules", "rules/skerry_test.yml"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
			if err != nil || strings.Contains(string(out), "WARNING") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (out []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, "rules/skerry.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var runbook = regexp.MustCompile(`(?m)^#+ (Skerry\w+)\n+(.+)`)

// Whoever is called in the night finds what it means and what to do.
func TestEveryAlertHasARunbookAndATest(t *testing.T) {
	known := map[string]string{}
	for _, m := range runbook.FindAllStringSubmatch(read(t, operations), -1) {
		known[m[1]] = m[2]
	}
	fires := regexp.MustCompile(`alertname="(Skerry\w+)"}', value: [1-9]`)
	tested := map[string]bool{}
	for _, m := range fires.FindAllStringSubmatch(read(t, "rules/skerry_test.yml"), -1) {
		tested[m[1]] = true
	}
	alerts := 0
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts++
		if len(known[r.Alert]) < 40 {
			t.Errorf("%s: %s has no runbook under a heading of that name", r.Alert, operations)
		}
		delete(known, r.Alert)
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
			t.Errorf("%s: runbook is %q, want %q", r.Alert, r.Annotations["runbook"], want)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || (r.Labels["severity"] != "warning" && r.Labels["severity"] != "critical") {
			t.Errorf("%s lacks a summary, a description or a severity: %v %v", r.Alert, r.Annotations, r.Labels)
		}
		if !tested[r.Alert] {
			t.Errorf("%s fires in no test of rules/skerry_test.yml", r.Alert)
		}
	}
	if alerts < 15 {
		t.Errorf("only %d alerts were read", alerts)
	}
	for name := range known {
		t.Errorf("%s has a runbook of %s, which is no alert", operations, name)
	}
}
