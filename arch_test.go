package skerry

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "skerry.internal/"

type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Name,Doc,Imports,Deps,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 15 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

// area is the first element of a path in the module; "" outside it.
func area(path string) string {
	rest, ok := strings.CutPrefix(path, module)
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// mayImport is the architecture: which areas of the module each may import
// beside itself. What is not listed may import nothing of ours.
var mayImport = map[string][]string{
	"cas":         {},
	"sandbox":     {},
	"npu":         {},
	"config":      {},
	"daemon":      {},
	"proto":       {},
	"envmgr":      {"cas"},
	"runnerd":     {"sandbox", "npu", "cas", "envmgr", "proto", "config"},
	"coordinator": {"proto", "config"},
	"cmd":         {"runnerd", "coordinator", "sandbox", "cas", "proto", "config", "daemon"},
	"deploy":      {"proto"},
	"e2e":         {"proto"},
}

func TestImportRules(t *testing.T) {
	for _, p := range packages(t) {
		from := area(p.ImportPath)
		if from == "" {
			continue
		}
		allowed, known := mayImport[from]
		if !known {
			t.Errorf("%s: area %q has no import rule", p.ImportPath, from)
		}
		for _, dep := range p.Imports {
			if to := area(dep); to != "" && to != from && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: %s may import %v alone", p.ImportPath, dep, from, allowed)
			}
		}
	}
}

func TestOnlyTheCommandSeesBothDaemons(t *testing.T) {
	for _, p := range packages(t) {
		has := func(part string) bool {
			return slices.ContainsFunc(p.Deps, func(d string) bool { return area(d) == part })
		}
		if has("runnerd") && has("coordinator") && p.ImportPath != module+"cmd/skerry" {
			t.Errorf("%s depends on both daemons", p.ImportPath)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" && !strings.HasSuffix(p.Name, "connect") && p.Name != "raftlogv1" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

func TestTestPackagesAreImportedByTestsAlone(t *testing.T) {
	for _, p := range packages(t) {
		if strings.HasSuffix(p.Name, "test") {
			continue
		}
		for _, dep := range p.Imports {
			last := dep[strings.LastIndex(dep, "/")+1:]
			if area(dep) != "" && strings.HasSuffix(last, "test") {
				t.Errorf("%s imports the test package %s", p.ImportPath, dep)
			}
		}
	}
}

// The supervisor is started once an execution: it must stay small.
func TestShimDependsOnNothingLarge(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"cmd/runnerd-shim" {
			continue
		}
		for _, dep := range p.Deps {
			first, _, _ := strings.Cut(dep, "/")
			outside := strings.Contains(first, ".") && area(dep) == ""
			if outside && !strings.HasPrefix(dep, "golang.org/x/sys/") {
				t.Errorf("runnerd-shim depends on %s", dep)
			}
			if dep == "net/http" || dep == "net" || dep == "crypto/tls" {
				t.Errorf("runnerd-shim depends on %s", dep)
			}
		}
		return
	}
	t.Fatal("cmd/runnerd-shim not found")
}
