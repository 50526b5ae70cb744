package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skerry.internal/sandbox/supervisor"
)

// TestConformance is what every backend must do alike. What a sandbox keeps out
// is in escape_test.go, limits are in limits_test.go, the way to the gateway is
// in egress_test.go; they too run against each backend.
func TestConformance(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		t.Run("ends", func(t *testing.T) { conformEnds(t, w) })
		t.Run("places", func(t *testing.T) { conformPlaces(t, w) })
		t.Run("stdin", func(t *testing.T) { conformStdin(t, w) })
		t.Run("identity", func(t *testing.T) { conformIdentity(t, w) })
		t.Run("name spaces", func(t *testing.T) { conformNamespaces(t, w) })
		t.Run("foreign calls", func(t *testing.T) { conformForeignCalls(t, w) })
		t.Run("time-out", func(t *testing.T) { conformTimeout(t, w) })
		t.Run("cancel", func(t *testing.T) { conformCancel(t, w) })
		t.Run("attach", func(t *testing.T) { conformAttach(t, w) })
		t.Run("supervisor killed", func(t *testing.T) { conformLost(t, w) })
		t.Run("many at once", func(t *testing.T) { conformMany(t, w) })
	})
}

// conformEnds: a command's end is told as a shell tells it.
func conformEnds(t *testing.T, w *world) {
	none, some := 0, 1
	notFound, notExecutable := 127, 126
	for name, c := range map[string]struct {
		args   []string
		cwd    string
		kind   supervisor.Kind
		code   *int
		signal string
	}{
		"zero":              {args: []string{"true"}, kind: supervisor.KindExited, code: &none},
		"one":               {args: []string{"false"}, kind: supervisor.KindExited, code: &some},
		"not found":         {args: []string{"/no/such"}, kind: supervisor.KindStartFailed, code: &notFound},
		"not in path":       {args: []string{"no-such-program"}, kind: supervisor.KindStartFailed, code: &notFound},
		"not executable":    {args: []string{"/etc/passwd"}, kind: supervisor.KindStartFailed, code: &notExecutable},
		"signal":            {args: []string{"bash", "-c", "kill -SEGV $$"}, kind: supervisor.KindSignaled, signal: "SIGSEGV"},
		"kill":              {args: []string{"bash", "-c", "kill -KILL $$"}, kind: supervisor.KindSignaled, signal: "SIGKILL"},
		"no directory":      {args: []string{"true"}, cwd: "/workspace/none", kind: supervisor.KindStartFailed},
		"pid 1 is immortal": {args: []string{"bash", "-c", "kill -KILL 1; kill -TERM 1; kill -STOP 1; exit 0"}, kind: supervisor.KindExited, code: &none},
	} {
		t.Run(name, func(t *testing.T) {
			policy := w.policy
			policy.Args, policy.Cwd = c.args, c.cwd
			r := w.begin(t, policy, nil).end(t)
			if r.Kind != c.kind || r.Signal != c.signal || c.code != nil && (r.Code == nil || *r.Code != *c.code) {
				t.Errorf("%+v, stderr %q", r.Exit, r.stderr)
			}
		})
	}
}

func conformPlaces(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", `pwd; echo "$A|$HOME|$TMPDIR|$(printenv '{fd:control}')"; echo err >&2; echo again > /dev/stdout; hostname
for d in . /tmp /var/tmp /dev/shm /run ~; do touch $d/x && rm $d/x || echo "$d is not writable"; done
for d in / /usr /etc /opt/env /dev /.skerry /.skerry/control; do touch $d/x 2>/dev/null && echo "$d is writable"; done
ls -l /proc/self/fd | grep -c -- '->'; cat /proc/net/dev | grep -c :`}
	if err := os.Mkdir(filepath.Join(w.workspace, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	policy.Cwd = "/workspace/sub"
	if os.Getuid() == 0 {
		if err := os.Chown(filepath.Join(w.workspace, "sub"), testUID, testGID); err != nil {
			t.Fatal(err)
		}
	}
	policy.Env = map[string]string{"A": "two\nlines", "{fd:control}": "{fd:args}"}
	r := w.begin(t, policy, nil).end(t)
	// ls itself has its directory open, beside the three streams.
	want := "/workspace/sub\ntwo\nlines|/home/agent|/tmp|{fd:args}\nagain\nskerry\n4\n1\n"
	if r.stdout != want || r.stderr != "err\n" {
		t.Errorf("stdout %q, stderr %q; want %q (%+v)", r.stdout, r.stderr, want, r.Exit)
	}
}

func conformStdin(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "cat; cat /dev/stdin | wc -c"}
	r := w.begin(t, policy, func(dir string, spec *supervisor.Spec) {
		spec.Stdin = "in"
		if err := os.WriteFile(filepath.Join(dir, "in"), []byte("given\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}).end(t)
	if r.stdout != "given\n6\n" && r.stdout != "given\n0\n" {
		t.Errorf("given input: %q, %q", r.stdout, r.stderr)
	}
	if r := w.shell(t, "wc -c"); r.stdout != "0\n" {
		t.Errorf("no input: %q, %q", r.stdout, r.stderr)
	}
}

// conformIdentity: agent inside, an unprivileged user of its own outside.
func conformIdentity(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "id -u; id -g; id -G; touch made; echo up; sleep 0.2; grep -h -e ^Seccomp: -e ^NoNewPrivs -e ^CapEff -e ^CapBnd -e ^CapAmb /proc/self/status | tr -d '\\n\\t'; cat /proc/self/oom_score_adj"}
	b := w.begin(t, policy, nil)
	status := awaitLeader(t, b)
	uid, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", status.LeaderPID))
	r := b.end(t)
	want := "1000\n1000\n1000\nup\nCapEff:0000000000000000CapBnd:0000000000000000CapAmb:0000000000000000NoNewPrivs:1Seccomp:21000\n"
	if r.stdout != want {
		t.Errorf("%q, want %q (%q)", r.stdout, want, r.stderr)
	}
	host := os.Getuid()
	if host == 0 {
		host = testUID
	}
	if line := fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", host, host, host, host); err != nil || !strings.Contains(string(uid), line) {
		t.Errorf("on the host it is %s, %v", uid, err)
	}
	if info, err := os.Stat(filepath.Join(w.workspace, "made")); err != nil || ownerOf(info) != host {
		t.Errorf("its file belongs to another: %v, %v", info, err)
	}
}

func conformNamespaces(t *testing.T, w *world) {
	r := w.shell(t, "for n in user pid mnt ipc uts net cgroup; do readlink /proc/self/ns/$n; done")
	inside := strings.Fields(r.stdout)
	for i, name := range []string{"user", "pid", "mnt", "ipc", "uts", "net", "cgroup"} {
		own, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil || len(inside) != 7 || inside[i] == own {
			t.Errorf("%s: the host's %s, the sandbox's %v (%v)", name, own, inside, err)
		}
	}
}

// conformForeignCalls: other numbers for the same calls, which no filter by
// number sees, end the process.
func conformForeignCalls(t *testing.T, w *world) {
	if out, err := exec.Command("uname", "-m").Output(); err != nil || strings.TrimSpace(string(out)) != "x86_64" {
		t.Skip("the x32 and i386 interfaces are those of x86_64")
	}
	for name, code := range map[string]string{
		"x32":  "ctypes.CDLL(None).syscall(0x40000000 + 39)",
		"i386": "m = mmap.mmap(-1, 4096, prot=7); m.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'); ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
	} {
		r := w.run(t, "python3", "-c", "import ctypes, mmap\n"+code+"\nprint('allowed')")
		if r.Kind != supervisor.KindSignaled || r.Signal != "SIGSYS" || r.stdout != "" {
			t.Errorf("%s: %q, %+v, %s", name, r.stdout, r.Exit, r.stderr)
		}
	}
}

func conformTimeout(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "trap '' TERM; sleep 100 & echo up; wait"}
	b := w.begin(t, policy, func(_ string, spec *supervisor.Spec) { spec.Timeout = 300 * time.Millisecond })
	if r := b.end(t); r.Kind != supervisor.KindTimedOut || r.stdout != "up\n" {
		t.Errorf("%+v %q", r.Exit, r.stdout)
	}
}

// conformCancel: a command that ignores the wish, with children in sessions of
// their own, is gone all the same, and so are they (F04).
func conformCancel(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "trap '' TERM; setsid -f sleep 100; (trap '' TERM; sleep 100) & while :; do sleep 0.01; done"}
	b := w.begin(t, policy, nil)
	status := awaitLeader(t, b)
	if err := b.Cancel(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	r := b.end(t)
	if r.Kind != supervisor.KindCancelled || !strings.Contains(r.Detail, "enough") {
		t.Errorf("%+v", r.Exit)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", status.LeaderPID)); err == nil {
		t.Errorf("process %d is alive", status.LeaderPID)
	}
	left := w.shell(t, "sleep 100 & setsid -f sleep 100; exit 4")
	if left.Kind != supervisor.KindExited || *left.Code != 4 || left.Ended.Sub(left.Started) > 10*time.Second {
		t.Errorf("with children left behind: %+v", left.Exit)
	}
}

// conformAttach: who comes later finds the execution, its output and its end.
func conformAttach(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; exit 9"}
	b := w.begin(t, policy, nil)
	awaitLeader(t, b)
	again, state, err := supervisor.Attach(t.Context(), b.Dir())
	if err != nil || state != supervisor.StateRunning {
		t.Fatal(state, err)
	}
	if err := w.host.Resume(t.Context(), b.id, again, policy); err != nil {
		t.Fatal(err)
	}
	b.Handle = again
	if r := b.end(t); *r.Code != 9 || r.stdout != "1\n2\n3\n4\n5\n" {
		t.Errorf("%+v %q", r.Exit, r.stdout)
	}
}

// conformLost: nothing of a sandbox outlives its supervisor, and no verdict is
// invented (F09).
func conformLost(t *testing.T, w *world) {
	policy := w.policy
	policy.Args = []string{"bash", "-c", "trap '' TERM HUP; setsid -f sleep 100; while :; do sleep 0.01; done"}
	b := w.begin(t, policy, nil)
	status := awaitLeader(t, b)
	if err := syscall.Kill(status.ShimPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := b.end(t); r.Kind != supervisor.KindLost || r.Code != nil {
		t.Errorf("%+v", r.Exit)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", status.LeaderPID)); err == nil {
		t.Errorf("process %d is alive", status.LeaderPID)
	}
}

// conformMany: 64 at once, each with its own end, and nothing stays of them.
func conformMany(t *testing.T, w *world) {
	w.shell(t, "true")
	for deadline := time.Now().Add(20 * time.Second); processesOf(shimBinary) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // a supervisor outlives its verdict a little
	}
	before := w.traces(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			policy := w.policy
			policy.Args = []string{"bash", "-c", fmt.Sprintf("echo %d; sleep 0.3; exit %d", i, i)}
			r := w.begin(t, policy, nil).end(t)
			if r.Kind != supervisor.KindExited || *r.Code != i || r.stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %+v %q", i, r.Exit, r.stdout)
			}
		})
	}
	wg.Wait()
	var after []string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if after = w.traces(t); slices.Equal(before, after) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: had %q, have %q", before, after)
		}
	}
	assertNoGroups(t, w.host)
}

// traces are counts of what executions could leave on the host.
func (w *world) traces(t *testing.T) []string {
	t.Helper()
	count := func(what string, n int) string { return fmt.Sprintf("%d %s", n, what) }
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	groups, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/skerry*/ex_%d_*", os.Getpid()))
	sockets, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(t.TempDir())), "*", "private", "state", "exec", "control", "*"))
	out := []string{count("mounts", strings.Count(string(mounts), "\n")), count("groups", len(groups)), count("sockets", len(sockets)),
		count("supervisors", processesOf(shimBinary))}
	if w.containerd != nil {
		lines := func(args ...string) int { return strings.Count(w.containerd.Ctr("skerry", args...), "\n") }
		out = append(out, count("shims", len(w.containerd.Shims())), count("containers", lines("containers", "list", "-q")),
			count("tasks", lines("tasks", "list", "-q")), count("snapshots", lines("snapshots", "list")))
	}
	return out
}

// processesOf counts the processes whose program is the file.
func processesOf(program string) (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe")); err == nil && to == program {
			n++
		}
	}
	return n
}

func awaitLeader(t *testing.T, b *begun) supervisor.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		s, err := b.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.LeaderPID != 0 {
			return s
		}
		time.Sleep(time.Millisecond)
	}
}
