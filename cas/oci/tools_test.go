package oci

import (
	"os"
	"os/exec"
	"testing"

	"skerry.internal/cas"
)

// tool finds a program of others that this package's images are tried with.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("SKERRY_REQUIRE_PROBES") == "1" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// What skopeo copies and umoci unpacks is the tree, and an image with a layer
// that umoci made from changes is the changed tree.
func TestOtherToolsReadAndWriteImages(t *testing.T) {
	tool(t, "skopeo")
	tool(t, "umoci")
	s, layout, copied, bundle := newStore(t), t.TempDir(), t.TempDir(), t.TempDir()
	src := scene(t)
	shot := snapshot(t, s, src)
	_, err := Export(t.Context(), s, shot.Tree, layout, ExportOptions{Tag: "one"})
	must(t, err)
	run(t, "skopeo", "copy", "oci:"+layout+":one", "oci:"+copied+":one")
	unpack := []string{"unpack", "--image", copied + ":one", bundle + "/b"}
	if os.Geteuid() != 0 {
		unpack = append([]string{"unpack", "--rootless"}, unpack[1:]...)
	}
	run(t, "umoci", unpack...)
	rootfs := bundle + "/b/rootfs"
	if got, want := list(t, s, snapshot(t, s, rootfs).Tree), list(t, s, shot.Tree); got != want {
		t.Fatalf("unpacked:\n%s\nexported:\n%s", got, want)
	}
	must(t, os.RemoveAll(rootfs+"/sub"), os.WriteFile(rootfs+"/none", []byte("some"), 0o600), os.Mkdir(rootfs+"/new", 0o755),
		os.WriteFile(rootfs+"/new/file", []byte("new"), 0o644))
	run(t, "umoci", "repack", "--image", copied+":two", bundle+"/b")
	in, err := Import(t.Context(), s, copied, ImportOptions{Tag: "two"}, func(i Imported) error { return s.Pin(t.Context(), "two", i.Tree) })
	must(t, err)
	if in.Layers != 2 {
		t.Fatalf("%d layers", in.Layers)
	}
	changes := map[string]cas.ChangeKind{}
	must(t, s.Diff(t.Context(), snapshot(t, s, rootfs).Tree, in.Tree, func(c cas.Change) error { changes[c.Path] = c.Kind; return nil }))
	if len(changes) > 0 {
		t.Fatalf("the imported image differs from what was packed: %v", changes)
	}
}
