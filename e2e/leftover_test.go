package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// traces is what executions could leave on the host, counted.
type traces struct {
	processes, cgroups, mounts, sockets, descriptors, egress, shims int
}

// count looks at everything that names this test's data directory, at what the
// daemon has open, and at the control groups of all executions with these ids.
func (d *dev) count(ids []string) (n traces) {
	d.t.Helper()
	data := filepath.Join(d.dir, "data")
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		environ, _ := os.ReadFile(p + "/environ")
		cwd, _ := os.Readlink(p + "/cwd")
		if filepath.Base(p) != fmt.Sprint(d.ready.PID) && (bytes.Contains(environ, []byte(data)) || strings.HasPrefix(cwd, data)) {
			n.processes++
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.ready.PID))
	if err != nil {
		d.t.Fatal(err)
	}
	n.descriptors = len(fds)
	mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", d.ready.PID))
	n.mounts = bytes.Count(mounts, []byte("\n"))
	unix, _ := os.ReadFile("/proc/net/unix")
	n.sockets = bytes.Count(unix, []byte(data))
	egress, _ := os.ReadDir(filepath.Join(data, "runner", "egress"))
	n.egress = len(egress)
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && known[entry.Name()] {
			n.cgroups++
		}
		return nil
	})
	return n
}

// 1,000 short executions in a row, under limits and a network policy, leave no
// process, group, mount, socket, directory or descriptor behind.
func TestAThousandExecutionsLeaveNothing(t *testing.T) {
	address := page(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"),
		fmt.Sprintf("network: {policies: {web: {allow: [%q], public: true}}}\nlimits: {memory: 256MiB, cpus: 2}\n", address))
	d := newDevWith(t, []string{"--runner-config", file})
	admin := d.admin()
	run := func(i int) string {
		o := &skerryv1.RunOptions{WaitMs: ms(20 * time.Second)}
		if i%4 == 0 {
			o.Network = "web"
		}
		command := "true"
		if i%50 == 0 { // what is left behind is ended after half a second
			command = "(setsid sleep 300 &); true"
		}
		res, err := admin.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: command, Options: o}))
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, res.Msg.Execution, "completed", "exited")
		return res.Msg.Execution.Id
	}
	for i := range 20 {
		run(i) // what is opened once is not a leak
	}
	before := d.count(nil)
	var ids []string
	for i := range 1000 {
		ids = append(ids, run(i))
	}
	var after traces
	d.eventually("all is gone", func() bool {
		after = d.count(ids)
		return after.cgroups == 0 && after.egress == 0 && after.processes <= before.processes && after.sockets <= before.sockets &&
			after.mounts <= before.mounts && after.descriptors <= before.descriptors+2
	})
	t.Logf("before %+v, after %+v", before, after)
}

// 200 executions at once sleep side by side, each with its own supervisor, and
// end when they are told to.
func TestTwoHundredAtOnce(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_SLOTS=256")
	const n = 200
	clients, ids := make([]*client, n), make([]string, n)
	for i := range n {
		clients[i], _ = d.agent(fmt.Sprint("agent", i))
	}
	for i, c := range clients {
		ids[i] = c.start(t, "echo up; sleep 1000", nil).Id
	}
	for i, c := range clients {
		d.eventually(ids[i]+" sleeps", func() bool { return c.log(t, ids[i], "") == "up\n" })
	}
	for i, c := range clients {
		if e := c.get(t, ids[i]); e.State != "running" {
			t.Fatalf("%v", e)
		}
	}
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			_, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: ids[i], WaitMs: ms(30 * time.Second)}))
			if err != nil {
				t.Errorf("%s: %v", ids[i], err)
			}
		})
	}
	wg.Wait()
	for i, c := range clients {
		wantState(t, c.wait(t, ids[i]), "cancelled", "cancelled")
	}
}
