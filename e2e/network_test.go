package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// page serves a page at an address of the loopback network that no_proxy does
// not name, so that tools ask the gateway for it.
func page(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page\n") })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// newNetworkDev starts skerry dev with the policies web (by token) and docs
// (public), which allow the page alone.
func newNetworkDev(t *testing.T, address string) *dev {
	t.Helper()
	file := writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"), fmt.Sprintf(
		"network: {policies: {web: {allow: [%q, 'a.example']}, docs: {allow: [%q], public: true}}}\n", address, address))
	return newDevWith(t, []string{"--runner-config", file})
}

// fetch is a shell command that gets the page through the proxy, with bash alone.
func fetch(address string) string {
	return fmt.Sprintf(`f() { exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n' >&3 && tail -1 <&3; }; f`, address, address)
}

func TestNetworkPolicies(t *testing.T) {
	address := page(t)
	d := newNetworkDev(t, address)
	admin := d.admin()
	res, err := admin.tok.CreateToken(t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "ann", NetworkPolicies: []string{"web"}}))
	if err != nil {
		t.Fatal(err)
	}
	ann := d.client(res.Msg.Secret)
	ben, _ := d.agent("ben")
	for name, c := range map[string]struct {
		client  *client
		network string
		refused string
	}{
		"by token": {ann, "web", ""}, "public": {ben, "docs", ""}, "admin": {admin, "web", ""},
		"not for this token": {ben, "web", "use one of: none, docs;"}, "unknown": {ann, "internet", "use one of: none, docs, web;"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &skerryv1.RunOptions{Network: c.network, WaitMs: ms(20 * time.Second)}
			res, err := c.client.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: fetch(address), Options: o}))
			if c.refused != "" {
				if p := problem.Of(err); p.GetReason() != problem.Unsupported || p.GetField() != "options.network" || !strings.Contains(p.GetRemedy(), c.refused) {
					t.Fatalf("%v, %v", err, p)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			e := res.Msg.Execution
			wantState(t, e, "completed", "exited")
			if e.Stdout.Text != "the page\n" || e.Command.Network != c.network {
				t.Errorf("stdout %q, record %v", e.Stdout.Text, e.Command)
			}
		})
	}
	// Without a policy there is none, and the record says so.
	e := ann.sh(t, "env | grep -i _proxy= || echo no proxy; ls -A /.skerry/net; exec 3<>/dev/tcp/127.0.0.1/3128")
	if e.State != "failed" || e.Stdout.Text != "no proxy\n" || e.Command.Network != "none" {
		t.Errorf("%v", e)
	}
	// A denial tells what to do, and is in the metrics.
	e = ann.wait(t, ann.start(t, fetch("evil.example"), &skerryv1.RunOptions{Network: "web"}).Id)
	if !strings.Contains(e.Stdout.Text, `ask the operator of runner "local" to extend network.policies.web.allow`) {
		t.Errorf("denial: %q %q", e.Stdout.Text, e.Stderr.GetText())
	}
	d.eventually("the denial is counted", func() bool {
		return strings.Contains(d.metrics(), `skerry_egress_requests_total{decision="deny",method="http",policy="web",reason="not_allowed"} 1`)
	})
	if m := d.metrics(); !strings.Contains(m, "skerry_egress_sockets 0") {
		t.Error("a socket is left")
	}
}

func (d *dev) metrics() string {
	res, err := http.Get(d.ready.MetricsURL)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// I2: the daemon is killed; the execution that goes on has its network again
// when the daemon is back, at the same place.
func TestI2NetworkSurvivesKill9(t *testing.T) {
	address := page(t)
	d := newNetworkDev(t, address)
	c := d.admin()
	e := c.start(t, fetch(address)+`; echo ready; while [ ! -e /workspace/go ]; do f > got 2>&1; [ "$(cat got)" = "the page" ] && echo again || echo without; sleep 0.2; done`,
		&skerryv1.RunOptions{Network: "web"})
	d.eventually("its first page", func() bool { return strings.Contains(c.log(t, e.Id, ""), "the page\nready\nagain\n") })
	for range 2 {
		d.kill()
		d.start()
		c = d.admin()
		before := strings.Count(c.log(t, e.Id, ""), "again\n")
		d.eventually("pages after the restart", func() bool { return strings.Count(c.log(t, e.Id, ""), "again\n") > before+2 })
		if got := c.get(t, e.Id); got.State != "running" {
			t.Fatalf("%v", got)
		}
	}
	if _, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id})); err != nil {
		t.Fatal(err)
	}
	c.wait(t, e.Id)
	if left := d.egressDirs(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func (d *dev) egressDirs() []string {
	matches, err := filepath.Glob(filepath.Join(d.dir, "data", "runner", "egress", "*"))
	if err != nil {
		d.t.Fatal(err)
	}
	return matches
}

// A policy that goes from the configuration: what runs under it is denied all,
// what waited for it does not start and says why, and what ended meanwhile
// leaves nothing.
func TestNetworkPolicyRemoved(t *testing.T) {
	address := page(t)
	d := newNetworkDev(t, address)
	c := d.admin()
	running := c.start(t, fetch(address)+`; while :; do exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://x.example/ HTTP/1.1\r\nHost: x.example\r\n\r\n' >&3; head -1 <&3; sleep 0.2; done`, &skerryv1.RunOptions{Network: "web"})
	waiting := c.start(t, fetch(address), &skerryv1.RunOptions{Network: "web"})
	d.eventually("it runs", func() bool { return strings.Contains(c.log(t, running.Id, ""), "the page") })
	d.kill()
	writeFile(t, d.args[1], "network: {policies: {docs: {allow: [a.example], public: true}}}\n")
	d.start()
	c = d.admin()
	d.eventually("it is denied all", func() bool { return strings.Contains(c.log(t, running.Id, ""), "(policy_removed)") })
	if _, err := c.ex.CancelExecution(context.Background(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: running.Id})); err != nil {
		t.Fatal(err)
	}
	end := c.wait(t, waiting.Id)
	wantState(t, end, "failed", "start_failed")
	if !strings.Contains(end.Verdict.Detail, `"web" is no longer in the runner's configuration`) {
		t.Errorf("%v", end.Verdict)
	}
	if left := d.egressDirs(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A server with a private address is reached by a name of the host's own file
// once the policy has both, and not before.
func TestNetworkOfASite(t *testing.T) {
	address := page(t)
	_, port, _ := net.SplitHostPort(address)
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Skipf("the port is taken on 127.0.0.1: %v", err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "for "+r.Host) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	name := "localhost:" + port
	for rules, want := range map[string]string{
		fmt.Sprintf("%q", name): "special_address",
		fmt.Sprintf("%q, '127.0.0.1:%s', '[::1]:%s'", name, port, port): "for " + name,
	} {
		file := writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"), "network: {default: site, policies: {site: {public: true, allow: ["+rules+"]}}}\n")
		d := newDevWith(t, []string{"--runner-config", file})
		e := d.admin().sh(t, strings.Replace(fetch(name), "tail -1", "cat", 1))
		if !strings.Contains(e.Stdout.GetText(), want) || e.Command.Network != "site" {
			t.Errorf("rules %s: %v", rules, e)
		}
		d.stop()
	}
}

// Executions one after the other leave no descriptor or directory behind.
func TestNetworkLeavesNothing(t *testing.T) {
	address := page(t)
	d := newNetworkDev(t, address)
	c := d.admin()
	run := func() {
		e := c.wait(t, c.start(t, fetch(address), &skerryv1.RunOptions{Network: "web"}).Id)
		if e.Stdout.GetText() != "the page\n" {
			t.Fatalf("%v", e)
		}
	}
	for range 10 {
		run()
	}
	fds := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.ready.PID))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := fds()
	for range 50 {
		run()
	}
	d.eventually("descriptors as before", func() bool { return fds() <= before+2 })
	if left := d.egressDirs(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
