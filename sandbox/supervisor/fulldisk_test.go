package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A command that fills the disk that the verdict goes to still has a verdict.
func TestI2VerdictSurvivesAFullDisk(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "echo out; dd if=/dev/zero of=big bs=4k 2>/dev/null; exit 7")
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=2m"); err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	f.dir, f.workspace = filepath.Join(disk, "exec"), filepath.Join(disk, "ws")
	for _, d := range []string{f.dir, f.workspace} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if c := f.spec.Credential; c != nil {
		if err := os.Chown(f.workspace, int(c.UID), int(c.GID)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range f.spec.Files {
		if f.spec.Files[i].Name == "workspace" {
			f.spec.Files[i].Path = f.workspace
		}
	}
	exit := f.run(t)
	if exit.Kind != KindExited || exit.Code == nil || *exit.Code != 7 {
		t.Fatalf("verdict %+v", exit)
	}
	if info, err := os.Stat(filepath.Join(f.workspace, "big")); err != nil || info.Size() < 1<<20 {
		t.Fatalf("the disk was not filled: %v %v", info, err)
	}
}

// A log that can't be written costs the output, not the verdict, and every byte
// that is missing is counted (F12).
func TestUnwritableLogIsCounted(t *testing.T) {
	f := newFixture(t, "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo out; echo err >&2; head -c 300000 /dev/zero; touch ran; exit 3")
	h := f.start(t)
	log := filepath.Join(f.dir, logDir)
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.workspace, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := wait(t, h)
	if e.Kind != KindExited || code(e) != 3 {
		t.Fatalf("%+v", e)
	}
	if e.Log.StdoutBytes != 300004 || e.Log.StderrBytes != 4 || e.Log.DroppedBytes != 300008 {
		t.Errorf("log %+v", e.Log)
	}
	if _, err := os.Stat(filepath.Join(f.workspace, "ran")); err != nil {
		t.Error(err)
	}
}
