// Command bench measures the launch budgets of docs/design.md: it starts
// "skerry dev" on a fresh data directory and compares, alternating in one run,
// executions through the API with bare bubblewrap.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the built programs")
	n := flag.Int("n", 300, "executions of the latency comparison")
	seconds := flag.Int("seconds", 5, "length of each throughput measurement")
	rounds := flag.Int("cluster", 0, "measure a cluster of three instead: fail-overs, after its idle memory")
	flag.Parse()
	if *rounds > 0 {
		if err := cluster(*rounds); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*bin, *n, time.Duration(*seconds)*time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(bin string, n int, each time.Duration) error {
	dir, err := os.MkdirTemp("", "skerry-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// As /var/lib/skerry is: sandbox users may pass, not look.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	d, err := startDev(bin, dir)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.latency(n); err != nil {
		return err
	}
	if err := d.network(n); err != nil {
		return err
	}
	return d.throughput(each)
}

type dev struct {
	cmd   *exec.Cmd
	Ready struct{ Endpoint, Token string }
}

func startDev(bin, dir string) (*dev, error) {
	ready, config := filepath.Join(dir, "ready.json"), filepath.Join(dir, "runnerd.yaml")
	if err := os.WriteFile(config, []byte("network: {policies: {bench: {allow: [bench.example]}}}\n"), 0o600); err != nil {
		return nil, err
	}
	d := &dev{cmd: exec.Command(filepath.Join(bin, "skerry"), "dev", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--ready-file", ready, "--runner-config", config, "--log-level", "warn")}
	d.cmd.Env = append(os.Environ(), "SKERRY_CONTEXT="+filepath.Join(dir, "context.json"))
	d.cmd.Stderr = os.Stderr
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	for range 600 {
		if b, err := os.ReadFile(ready); err == nil {
			return d, json.Unmarshal(b, &d.Ready)
		}
		time.Sleep(100 * time.Millisecond)
	}
	d.stop()
	return nil, fmt.Errorf("skerry dev not ready after 60 s")
}

func (d *dev) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (d *dev) client(token string) skerryv1connect.ExecutionServiceClient {
	return skerryv1connect.NewExecutionServiceClient(&http.Client{Transport: bearer(token)}, d.Ready.Endpoint)
}

func runTrue(ctx context.Context, c skerryv1connect.ExecutionServiceClient) error {
	return runUnder(ctx, c, "none")
}

// runUnder runs true under a network policy.
func runUnder(ctx context.Context, c skerryv1connect.ExecutionServiceClient, network string) error {
	res, err := c.RunShell(ctx, connect.NewRequest(&skerryv1.RunShellRequest{Command: "true", Options: &skerryv1.RunOptions{Network: network}}))
	if err != nil {
		return err
	}
	if e := res.Msg.Execution; e.State != skerryv1.StateCompleted || e.GetSnapshot().GetDigest() == "" {
		return fmt.Errorf("execution %s is %s (%v)", e.Id, e.State, e.Verdict)
	}
	return nil
}

// bwrapArgs is a sandbox as people make it by hand, without anything durable.
var bwrapArgs = []string{"--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
	"--symlink", "usr/bin", "/bin", "--unshare-all", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent", "/bin/true"}

func bareBwrap() error { return exec.Command("bwrap", bwrapArgs...).Run() }

// latency alternates the two, so that noise of the machine hits both.
func (d *dev) latency(n int) error {
	c := d.client(d.Ready.Token)
	var ours, bare []time.Duration
	for i := range n + 20 {
		began := time.Now()
		if err := bareBwrap(); err != nil {
			return err
		}
		middle := time.Now()
		if err := runTrue(context.Background(), c); err != nil {
			return err
		}
		if i >= 20 { // the first ones warm caches
			bare, ours = append(bare, middle.Sub(began)), append(ours, time.Since(middle))
		}
	}
	slices.Sort(ours)
	slices.Sort(bare)
	at := func(d []time.Duration, q float64) time.Duration { return d[int(q*float64(len(d)-1))] }
	fmt.Printf("latency of %d: RunShell true, durable and committed, against bare bwrap /bin/true\n", n)
	for _, q := range []float64{0.5, 0.9, 0.99} {
		fmt.Printf("  p%-3.0f  skerry %8.2f ms   bwrap %8.2f ms   ratio %.2f\n", q*100, ms(at(ours, q)), ms(at(bare, q)), ms(at(ours, q))/ms(at(bare, q)))
	}
	fmt.Printf("  budget: p50 ratio <= 3\n")
	return nil
}

// network alternates executions without network and under a policy.
func (d *dev) network(n int) error {
	c := d.client(d.Ready.Token)
	var none, policy []time.Duration
	for i := range n + 20 {
		began := time.Now()
		if err := runUnder(context.Background(), c, "none"); err != nil {
			return err
		}
		middle := time.Now()
		if err := runUnder(context.Background(), c, "bench"); err != nil {
			return err
		}
		if i >= 20 {
			none, policy = append(none, middle.Sub(began)), append(policy, time.Since(middle))
		}
	}
	slices.Sort(none)
	slices.Sort(policy)
	fmt.Printf("latency of %d: RunShell true under a network policy, against network none\n", n)
	for _, q := range []float64{0.5, 0.9, 0.99} {
		i := int(q * float64(n-1))
		fmt.Printf("  p%-3.0f  policy %8.2f ms   none %8.2f ms   adds %.2f ms\n", q*100, ms(policy[i]), ms(none[i]), ms(policy[i]-none[i]))
	}
	fmt.Printf("  budget: p50 adds <= 10 ms\n")
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

const callers = 8

func (d *dev) throughput(each time.Duration) error {
	tokens := skerryv1connect.NewTokenServiceClient(&http.Client{Transport: bearer(d.Ready.Token)}, d.Ready.Endpoint)
	var clients []skerryv1connect.ExecutionServiceClient
	for i := range callers {
		res, err := tokens.CreateToken(context.Background(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: fmt.Sprintf("bench%d", i)}))
		if err != nil {
			return err
		}
		c := d.client(res.Msg.Secret)
		if err := runTrue(context.Background(), c); err != nil { // makes the workspace
			return err
		}
		clients = append(clients, c)
	}
	one, err := rate(1, each, func(int) error { return bareBwrap() })
	if err != nil {
		return err
	}
	eight, err := rate(callers, each, func(int) error { return bareBwrap() })
	if err != nil {
		return err
	}
	ours, err := rate(callers, each, func(i int) error { return runTrue(context.Background(), clients[i]) })
	if err != nil {
		return err
	}
	fmt.Printf("executions/s with %d callers in workspaces of their own, %s each\n", callers, each)
	fmt.Printf("  skerry %.0f/s   bare loop of bwrap %.0f/s (%.0f %%)   %d bare loops at once %.0f/s (%.0f %%)\n",
		ours, one, 100*ours/one, callers, eight, 100*ours/eight)
	fmt.Printf("  budget: at least 50 %% of a bare loop of bwrap\n")
	return nil
}

// rate calls f from n goroutines for a while and gives calls a second.
func rate(n int, each time.Duration, f func(i int) error) (float64, error) {
	var done atomic.Int64
	errs := make(chan error, n)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for time.Since(began) < each {
				if err := f(i); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return 0, err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}
