package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/sandboxtest"
)

const containerdTier = "containerd-userns+seccomp+cgroup+uid"

// newContainerdDev starts skerry dev with sandboxes of a containerd of its own.
func newContainerdDev(t *testing.T, more string) (*dev, *sandboxtest.Containerd) {
	t.Helper()
	c := sandboxtest.StartContainerd(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"),
		fmt.Sprintf("sandbox: {backends: [containerd], containerd: {address: %q}}\n%s", c.Address, more))
	return newDevWith(t, []string{"--runner-config", file}), c
}

func noContainers(d *dev, c *sandboxtest.Containerd) {
	d.t.Helper()
	d.eventually("no container is left", func() bool {
		return c.Ctr("skerry", "containers", "list", "-q") == "" && len(c.Shims()) == 0
	})
}

func TestContainerdExecutions(t *testing.T) {
	address := page(t)
	d, ctrd := newContainerdDev(t, fmt.Sprintf("network: {policies: {docs: {allow: [%q], public: true}}}\nlimits: {memory: 128MiB}\n", address))
	c := d.admin()
	e := c.sh(t, "id -un; hostname; echo made > made; exit 3")
	wantState(t, e, "failed", "exited")
	if e.Backend != "containerd" || e.Tier != containerdTier || e.Verdict.GetExitCode() != 3 || e.Stdout.Text != "agent\nskerry\n" || strings.Join(e.Changes.Created, "") != "made" {
		t.Fatalf("record %v", e)
	}
	for _, tier := range []string{containerdTier, "bwrap-userns+seccomp+cgroup"} {
		wantState(t, c.wait(t, c.start(t, "true", &skerryv1.RunOptions{RequireTier: tier}).Id), "completed", "exited")
	}
	_, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true", Options: &skerryv1.RunOptions{RequireTier: "containerd-vm"}}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a tier that is not there: %v", err)
	}
	net := c.wait(t, c.start(t, fetch(address), &skerryv1.RunOptions{Network: "docs"}).Id)
	if wantState(t, net, "completed", "exited"); net.Stdout.Text != "the page\n" {
		t.Errorf("through the gateway: %v", net)
	}
	oom := c.sh(t, "python3 -c 'x = bytearray(1 << 30)'")
	wantState(t, oom, "failed", "oom_killed")
	noContainers(d, ctrd)
}

// The daemon and containerd are both killed while an execution prints: it runs
// on, its log has every line once, its exit code is right (I2, F05).
func TestI2ContainerdExecutionSurvivesKill9(t *testing.T) {
	d, ctrd := newContainerdDev(t, "")
	c := d.admin()
	e := c.start(t, `for i in $(seq 60); do echo line $i; sleep 0.1; done; exit 7`, nil)
	d.eventually("five lines", func() bool { return strings.Contains(c.log(t, e.Id, ""), "line 5\n") })
	d.kill()
	ctrd.Kill()
	ctrd.Start()
	d.start()
	c = d.admin()
	if got := c.get(t, e.Id); got.State != "running" {
		t.Fatalf("after a restart the execution is %s (%v)", got.State, got.Verdict)
	}
	ctrd.Kill() // and away at the end
	end := c.wait(t, e.Id)
	wantState(t, end, "failed", "exited")
	if end.Verdict.GetExitCode() != 7 || end.Backend != "containerd" {
		t.Fatalf("record %v", end)
	}
	var want strings.Builder
	for i := range 60 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if got := c.log(t, e.Id, ""); got != want.String() {
		t.Fatalf("log after restarts:\n%s", got)
	}
	// What needs containerd fails at once with the reason, and works again later.
	began := time.Now()
	failed := c.sh(t, "true")
	wantState(t, failed, "failed", "start_failed")
	if !strings.Contains(failed.Verdict.Detail, "containerd is not available") || time.Since(began) > 40*time.Second {
		t.Errorf("without containerd: %v after %s", failed.Verdict, time.Since(began))
	}
	ctrd.Start()
	d.eventually("containerd is found again", func() bool { return c.sh(t, "true").State == "completed" })
	noContainers(d, ctrd)
}

// Killed over and over at each step of a launch: each runs exactly once, and
// nothing is left of those that a dead daemon began.
func TestI3ContainerdRunsOnceUnderKills(t *testing.T) {
	d, ctrd := newContainerdDev(t, "")
	const rounds = 10
	var ids []string
	for r := range rounds {
		c := d.admin()
		for i := range 3 {
			ids = append(ids, c.start(t, fmt.Sprintf("echo %d.%d >> ran", r, i), nil).Id)
		}
		time.Sleep(time.Duration(r*15) * time.Millisecond) // varies the point of the kill
		d.kill()
		d.start()
	}
	c := d.admin()
	for _, id := range ids {
		wantState(t, c.wait(t, id), "completed", "exited")
	}
	var want strings.Builder
	for r := range rounds {
		for i := range 3 {
			fmt.Fprintf(&want, "%d.%d\n", r, i)
		}
	}
	if got := c.read(t, "ran"); got != want.String() {
		t.Fatalf("ran:\n%s\nwant:\n%s", got, want.String())
	}
	noContainers(d, ctrd)
}

// A container that can't be removed, here as its shim hangs, doesn't keep the
// daemon from starting; it goes when it can.
func TestContainerdLeftoverThatHangs(t *testing.T) {
	d, ctrd := newContainerdDev(t, "")
	c := d.admin()
	e := c.start(t, "echo up; sleep 1", nil)
	d.eventually("it runs", func() bool { return strings.Contains(c.log(t, e.Id, ""), "up") })
	signal := func(s syscall.Signal) {
		for _, pid := range ctrd.Shims() {
			if err := syscall.Kill(pid, s); err != nil {
				t.Error(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	wantState(t, c.wait(t, e.Id), "completed", "exited")
	d.kill()
	d.start()
	wantState(t, d.admin().sh(t, "true"), "completed", "exited")
	if ctrd.Ctr("skerry", "containers", "list", "-q") == "" {
		t.Error("the container is gone: nothing was tested")
	}
	signal(syscall.SIGCONT)
	noContainers(d, ctrd)
}

// The order of backends is the operator's: none is taken that is not listed, and
// one that is passed over is told.
func TestBackendsInOrder(t *testing.T) {
	config := func(backends string) string {
		return writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"), fmt.Sprintf("sandbox: {backends: %s, containerd: {address: /no/such/socket}}\n", backends))
	}
	alone := exec.Command(filepath.Join(binDir, "skerry"), "dev", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--runner-config", config("[containerd]"))
	out, err := alone.CombinedOutput()
	reason := "there is no socket /no/such/socket"
	if os.Getuid() != 0 {
		reason = "the daemon is not root"
	}
	if err == nil || !strings.Contains(string(out), reason) || !strings.Contains(string(out), "to get it") {
		t.Errorf("it started, or did not say why not: %v\n%s", err, out)
	}
	d := newDevWith(t, []string{"--runner-config", config("[containerd, bubblewrap]")})
	d.said("passed over.*next=bubblewrap.*" + reason)
	if e := d.admin().sh(t, "true"); e.Backend != "bubblewrap" {
		t.Errorf("record %v", e)
	}
}
