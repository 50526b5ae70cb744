package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

// testCluster is what deploy/testcluster prints.
type testCluster struct {
	dir                        string
	Leader, AdminToken, CAFile string
	Nodes                      []struct {
		Name, Role, Endpoint string
		Process              struct{ PID int }
	}
}

// testcluster runs one of its commands.
func (c *testCluster) testcluster(args ...string) error {
	cmd := exec.Command("deploy/testcluster/testcluster", append([]string{"--dir", c.dir}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("testcluster %s: %w", args[0], err)
	}
	return json.NewDecoder(bytes.NewReader(out)).Decode(c)
}

// cluster measures three real coordinators: what they take when idle, and how
// long the cluster takes no writes when its leader is killed.
func cluster(rounds int) error {
	if os.Geteuid() != 0 {
		fmt.Println("left out, idle memory and fail-over of a cluster: its network namespaces need root")
		return nil
	}
	dir, err := os.MkdirTemp("/var/tmp", "skerry-bench-cluster-")
	if err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	c := &testCluster{dir: dir}
	if err := c.testcluster("up", "--coordinators", "3", "--runners", "1"); err != nil {
		return err
	}
	defer func() { _ = c.testcluster("down") }()
	time.Sleep(10 * time.Second)
	fmt.Println("idle memory in a cluster of 3 coordinators and 1 runner; budgets: coordinator <= 50 MiB, runnerd <= 40 MiB")
	for _, n := range c.Nodes {
		fmt.Printf("  %-3s %-11s %5.1f MiB\n", n.Name, n.Role, resident(n.Process.PID))
	}
	return c.failOvers(rounds)
}

func resident(pid int) float64 {
	text, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib float64
	_, _ = fmt.Sscan(rest, &kib)
	return kib / 1024
}

func (c *testCluster) failOvers(rounds int) error {
	trust, err := os.ReadFile(c.CAFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust)
	var took []time.Duration
	for range rounds {
		gap, err := c.failOver(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
		if err != nil {
			return err
		}
		took = append(took, gap)
		time.Sleep(2 * time.Second) // the old leader catches up
	}
	slices.Sort(took)
	fmt.Printf("fail-over, leader killed with SIGKILL until the next acknowledged write, %d rounds\n", rounds)
	fmt.Printf("  p50 %.2f s   longest %.2f s   budget <= 3 s\n", took[len(took)/2].Seconds(), took[len(took)-1].Seconds())
	return nil
}

// failOver kills the leader and writes through the others until one answers.
func (c *testCluster) failOver(trust *tls.Config) (time.Duration, error) {
	if err := c.testcluster("status"); err != nil {
		return 0, err
	}
	var others []skerryv1connect.RunnerServiceClient
	victim := 0
	for _, n := range c.Nodes {
		switch {
		case n.Name == c.Leader:
			victim = n.Process.PID
		case n.Role == "coordinator":
			transport := &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true}
			client := &http.Client{Transport: withToken{c.AdminToken, transport}, Timeout: 2 * time.Second}
			others = append(others, skerryv1connect.NewRunnerServiceClient(client, n.Endpoint))
		}
	}
	if victim == 0 {
		return 0, errors.New("no coordinator leads")
	}
	name := c.Leader
	began := time.Now()
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		req := connect.NewRequest(&skerryv1.CordonRunnerRequest{Runner: "r1", Reason: fmt.Sprint(began.UnixNano(), n)})
		_, err := others[n%len(others)].CordonRunner(context.Background(), req)
		if err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			return 0, fmt.Errorf("no write for a minute: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	gap := time.Since(began)
	return gap, c.testcluster("start", name)
}

// withToken is bearer on a transport of its own.
type withToken struct {
	token string
	base  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.base.RoundTrip(r)
}
