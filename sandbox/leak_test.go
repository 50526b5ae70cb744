package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// otherAgent is the uid of an agent whose files leak too.
const otherAgent = 54399

// leak is a directory full of what must never be in a sandbox.
func leak(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(privateDir(t), "leak")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o755))
	cat, err := exec.LookPath("cat")
	must(err)
	program, err := os.ReadFile(cat)
	must(err)
	for _, f := range []struct {
		name     string
		content  []byte
		uid, gid int
		mode     os.FileMode
	}{
		{"root-0600", []byte("secret"), 0, 0, 0o600},
		{"shadow-0640", []byte("secret"), 0, 42, 0o640},
		{"root-group-0060", []byte("secret"), testUID + 1, 0, 0o060},
		{"agent-0600", []byte("secret"), otherAgent, otherAgent, 0o600},
		{"agent-0660", []byte("secret"), otherAgent, otherAgent, 0o660},
		{"public-0644", []byte("public"), 0, 0, 0o644},
		{"cat-setuid", program, 0, 0, 0o755 | os.ModeSetuid},
		{"cat-setgid", program, 0, 42, 0o755 | os.ModeSetgid},
		{"cat-of-agent", program, otherAgent, otherAgent, 0o755 | os.ModeSetuid | os.ModeSetgid},
	} {
		path := filepath.Join(dir, f.name)
		must(os.WriteFile(path, f.content, 0o600))
		must(os.Chown(path, f.uid, f.gid))
		must(os.Chmod(path, f.mode))
	}
	must(os.Mkdir(dir+"/agent-dir", 0o700))
	must(os.WriteFile(dir+"/agent-dir/file", []byte("secret"), 0o644))
	must(os.Chown(dir+"/agent-dir", otherAgent, otherAgent))
	return dir
}

// I7, the last line of defence: host files that got into a sandbox by mistake are
// of no use to its code, for it is nobody on the host. Neither their set-id bits
// nor being root's in the sandbox's own name space helps.
func TestI7LeakedHostFilesCannotBeRead(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		if os.Getuid() != 0 {
			t.Skip("not root: there are no files that this user can leak and not read")
		}
		w := open(t, func(c *Config) { c.MountPoints = []string{"/mnt/leak"} })
		dir := leak(t)
		w.policy.ReadOnly = []Bind{{Source: dir, Target: "/mnt/leak"}}
		r := w.shell(t, `cd /mnt/leak
cat public-0644; echo
for f in root-0600 shadow-0640 root-group-0060 agent-0600 agent-0660 agent-dir/file; do
  for by in cat ./cat-setuid ./cat-setgid ./cat-of-agent; do
    if text=$($by "$f" 2>/dev/null); then echo "LEAK $f by $by: $text"; fi
  done
  if cp "$f" /tmp/copy 2>/dev/null || ln "$f" /workspace/link 2>/dev/null || mv "$f" /tmp 2>/dev/null || chmod a+r "$f" 2>/dev/null; then echo "LEAK $f"; fi
done
for by in ./cat-setuid ./cat-setgid ./cat-of-agent; do
  $by /proc/self/status | grep -E '^(Uid|Gid|CapEff)'
done`)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		want := []string{"public"}
		for range 3 {
			want = append(want, "Uid:\t1000\t1000\t1000\t1000", "Gid:\t1000\t1000\t1000\t1000", "CapEff:\t0000000000000000")
		}
		if fmt.Sprint(lines) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s\n(%s)", r.stdout, strings.Join(want, "\n"), r.stderr)
		}
	})
}

// A workspace brings no power either: what an agent makes set-id there is, on the
// host, an agent's program, and elsewhere the bits do nothing.
func TestI7SetIDFilesOfAWorkspace(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		if os.Getuid() != 0 {
			t.Skip("not root: all agents share one uid")
		}
		w := open(t, nil)
		if r := w.shell(t, `cp $(command -v cat) evil && chmod 6755 evil && ./evil /proc/self/status | grep -E '^(Uid|NoNewPrivs)'`); r.stdout != "Uid:\t1000\t1000\t1000\t1000\nNoNewPrivs:\t1\n" {
			t.Fatalf("in the sandbox: %q (%s)", r.stdout, r.stderr)
		}
		info, err := os.Stat(w.workspace + "/evil")
		if err != nil {
			t.Fatal(err)
		}
		// The directories above are closed to others, so that no other agent's code,
		// and no user of the host, reaches the program.
		top, err := os.Stat(w.workspace)
		if err != nil || top.Mode().Perm()&0o077 != 0 {
			t.Errorf("the workspace is open to others: %v %v (%v)", top.Mode(), info.Mode(), err)
		}
	})
}
