package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// daemon is one real coordinator.
type daemon struct {
	name     string
	dir      string
	bin      string
	api      string
	metrics  string
	raft     string
	enter    string
	cmd      *exec.Cmd
	finished chan struct{}
}

// freeAddress is one that nothing listens on now, below the range of ports that
// the runners' own ends of their links take.
func freeAddress(first int) (string, error) {
	for port := first; port < first+1000; port++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if ln, err := net.Listen("tcp", address); err == nil {
			return address, ln.Close()
		}
	}
	return "", errors.New("no free port")
}

func newDaemon(bin, dir string, number int) (*daemon, error) {
	d := &daemon{name: fmt.Sprintf("c%d", number), bin: bin, dir: filepath.Join(dir, fmt.Sprintf("c%d", number))}
	for i, at := range []*string{&d.api, &d.metrics, &d.raft} {
		var err error
		if *at, err = freeAddress(21000 + number*100 + i*10); err != nil {
			return nil, err
		}
	}
	return d, os.MkdirAll(d.dir, 0o700)
}

func (d *daemon) endpoint() string { return "https://" + d.api }

// start starts the daemon; it is up when it answers.
func (d *daemon) start(several bool) error {
	text := fmt.Sprintf("name: %s\ndata_dir: %s\nlisten: %s\nmetrics_listen: %s\nlimits: {max_in_flight: 65536}\n", d.name, filepath.Join(d.dir, "data"), d.api, d.metrics)
	if several {
		text += fmt.Sprintf("advertise: %s\ncluster:\n  listen: %s\n  stabilization: 1s\n  %s\n", d.endpoint(), d.raft, d.enter)
	} else {
		text += "tls: {cluster: true}\n"
	}
	config := filepath.Join(d.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(d.bin, "coordinator"), "--config", config, "--log-level", "warn")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	d.cmd, d.finished = cmd, ended
	go func() { _ = cmd.Wait(); close(ended) }()
	return nil
}

// kill ends the daemon with SIGKILL.
func (d *daemon) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.finished
	d.cmd = nil
}

func (d *daemon) ready() error {
	res, err := http.Get("http://" + d.metrics + "/readyz")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// metric reads one metric without labels.
func (d *daemon) metric(name string) (float64, error) {
	res, err := http.Get("http://" + d.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// memory is the resident set in MiB.
func (d *daemon) memory() float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// cpu is the processor time used so far.
func (d *daemon) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const user, system, tick = 11, 12, 10 * time.Millisecond
	if len(fields) <= system {
		return 0
	}
	u, _ := strconv.Atoi(fields[user])
	k, _ := strconv.Atoi(fields[system])
	return time.Duration(u+k) * tick
}

// roots are the cluster's authorities, as the first coordinator has them.
func (d *daemon) roots() (*tls.Config, error) {
	text, err := os.ReadFile(filepath.Join(d.dir, "data", "tls", "identity.pem"))
	if err != nil {
		return nil, err
	}
	_, authorities, ok := strings.Cut(string(text), "-----END CERTIFICATE-----\n")
	pool := x509.NewCertPool()
	if !ok || !pool.AppendCertsFromPEM([]byte(authorities)) {
		return nil, errors.New("identity.pem has no authority")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, nil
}

// bearer is an HTTP client with a token.
type bearer struct {
	token string
	base  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.base.RoundTrip(r)
}

// waitFor repeats check until it gives no error.
func waitFor(ctx context.Context, limit time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// joinToken makes a join token for a coordinator.
func (s *sim) joinToken(ctx context.Context, name string) (string, error) {
	c := rpc.NewJoinServiceClient(s.client(s.admin), s.daemons[0].endpoint())
	res, err := c.CreateJoinToken(ctx, connect.NewRequest(&skerryv1.CreateJoinTokenRequest{Role: "coordinator", Name: name}))
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, name+".token")
	return path, os.WriteFile(path, []byte(res.Msg.GetSecret()), 0o600)
}
