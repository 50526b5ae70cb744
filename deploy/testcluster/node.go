package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	roleCoordinator = "coordinator"
	roleRunner      = "runner"
	// roleProxy is an HTTP proxy that runners are reached by alone.
	roleProxy = "proxy"

	portAPI     = "7420"
	portMetrics = "7421"
	portRaft    = "7422"
	portPeer    = "7430"
	portProxy   = "3128"
)

// node is one daemon.
type node struct {
	Name string `json:"name"`
	Role string `json:"role"`
	IP   string `json:"ip"`
	// Space is the network namespace.
	Space string `json:"namespace"`
	Dir   string `json:"dir"`
	// Endpoint is the API of a coordinator and Metrics a node's metrics, both on
	// loopback of this machine.
	Endpoint string  `json:"endpoint,omitempty"`
	Metrics  string  `json:"metricsUrl"`
	Process  process `json:"process"`

	// Founder made the cluster, the others joined it.
	Founder bool `json:"founder,omitempty"`
	// Bin has the programs that it runs; empty: those of all.
	Bin string `json:"bin,omitempty"`
	// Via is the proxy that is a runner's only way out.
	Via string `json:"via,omitempty"`

	// State is "running" or "stopped", of when it was asked for.
	State string `json:"state,omitempty"`
}

func (c *cluster) newNode(role string, number int) *node {
	letter, last := "c", 10+number
	switch role {
	case roleRunner:
		letter, last = "r", 100+number
	case roleProxy:
		letter, last = "p", 210+number
	}
	name := letter + strconv.Itoa(number)
	return &node{Name: name, Role: role, IP: network + strconv.Itoa(last), Space: c.ID + "-" + name, Dir: filepath.Join(c.Dir, name)}
}

func (n *node) dataDir() string   { return filepath.Join(n.Dir, "data") }
func (n *node) joinToken() string { return filepath.Join(n.Dir, "join.token") }
func (n *node) config() string    { return filepath.Join(n.Dir, "config.yaml") }
func (n *node) log() string       { return filepath.Join(n.Dir, "log") }

// program is the daemon and its arguments.
func (n *node) program() []string {
	bin := n.Bin
	if bin == "" {
		bin = os.Getenv("SKERRY_BIN")
	}
	switch n.Role {
	case roleCoordinator:
		return []string{filepath.Join(bin, "coordinator"), "--config", n.config()}
	case roleRunner:
		return []string{filepath.Join(bin, "runnerd"), "--config", n.config()}
	}
	return []string{filepath.Join(bin, "testcluster"), "connect-proxy", "--listen", net.JoinHostPort(n.IP, portProxy), "--metrics", net.JoinHostPort(n.IP, portMetrics)}
}

// start writes the configuration, starts the daemon and waits until it answers.
func (c *cluster) start(ctx context.Context, n *node) error {
	if err := os.MkdirAll(n.Dir, 0o711); err != nil {
		return err
	}
	if err := os.WriteFile(n.config(), []byte(c.configOf(n)), 0o600); err != nil {
		return err
	}
	return c.startAsIs(ctx, n)
}

// startAsIs starts the daemon with the configuration that is there.
func (c *cluster) startAsIs(ctx context.Context, n *node) error {
	if n.Process.alive() {
		return fmt.Errorf("it runs already, as process %d", n.Process.PID)
	}
	if c.Plan.Disks && n.Role == roleCoordinator {
		if err := n.makeDisk(); err != nil {
			return err
		}
	}
	argv := append([]string{"nsenter", "--net=/run/netns/" + n.Space}, n.program()...)
	var err error
	if n.Process, err = startProcess(argv, n.log(), c.settings(n)); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	return await(ctx, n.Name+" to answer", func() error {
		if !n.Process.alive() {
			return fmt.Errorf("%w; see %s", errHopeless, n.log())
		}
		return healthy(ctx, n.Metrics)
	})
}

// settings of the plan go by the environment, which takes keys by name.
func (c *cluster) settings(n *node) (env []string) {
	set, prefix := c.Plan.Coordinator, "SKERRY_COORDINATOR_"
	if n.Role == roleRunner {
		set, prefix = c.Plan.Runner, "SKERRY_RUNNERD_"
	}
	for key, value := range set {
		env = append(env, prefix+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))+"="+value)
	}
	slices.Sort(env)
	return env
}

// configOf is a node's configuration with what the plan adds to it.
func (c *cluster) configOf(n *node) string {
	if n.Role == roleRunner {
		return c.ownConfig(n) + c.Plan.RunnerYAML
	}
	return c.ownConfig(n)
}

func (c *cluster) ownConfig(n *node) string {
	var others []string
	for _, other := range c.withRole(roleCoordinator) {
		if other != n {
			others = append(others, "https://"+other.IP+":"+portAPI)
		}
	}
	list := "[" + strings.Join(others, ", ") + "]"
	if n.Role == roleRunner {
		return fmt.Sprintf(`name: %s
data_dir: %s
coordinators: %s
join_token_file: %s
metrics_listen: %s:%s
proxy: %s
labels: {node: %s}
peer: {listen: "%s:%s"}
`, n.Name, n.dataDir(), list, n.joinToken(), n.IP, portMetrics, c.proxyOf(n), n.Name, n.IP, portPeer)
	}
	enter := "bootstrap: true"
	if !n.Founder {
		enter = "join: " + list + "\n  join_token_file: " + n.joinToken()
	}
	if c.Plan.Coordinators == 1 {
		return fmt.Sprintf("name: %s\ndata_dir: %s\nlisten: %s:%s\nmetrics_listen: %s:%s\ntls: {cluster: true}\n",
			n.Name, n.dataDir(), n.IP, portAPI, n.IP, portMetrics)
	}
	return fmt.Sprintf(`name: %s
data_dir: %s
listen: %s:%s
advertise: https://%s:%s
metrics_listen: %s:%s
cluster:
  listen: %s:%s
  stabilization: 1s
  %s
`, n.Name, n.dataDir(), n.IP, portAPI, n.IP, portAPI, n.IP, portMetrics, n.IP, portRaft, enter)
}

func (c *cluster) proxyOf(n *node) string {
	if via, err := c.node(n.Via); err == nil {
		return "http://" + net.JoinHostPort(via.IP, portProxy)
	}
	return "none"
}

func (c *cluster) signal(n *node, sig syscall.Signal) error {
	if !n.Process.alive() {
		return errors.New("it does not run")
	}
	return syscall.Kill(n.Process.PID, sig)
}

// end signals the daemon and waits until it is gone.
func (c *cluster) end(n *node, sig syscall.Signal) error {
	if err := c.signal(n, sig); err != nil {
		return err
	}
	_ = syscall.Kill(n.Process.PID, syscall.SIGCONT) // a paused one would not end
	return await(context.Background(), n.Name+" to end", func() error {
		if n.Process.alive() {
			return fmt.Errorf("process %d runs", n.Process.PID)
		}
		return nil
	})
}

// endAll kills the daemon and what it has left running in its namespace.
func (c *cluster) endAll(n *node) error {
	if err := n.Process.kill(); err != nil {
		return err
	}
	return await(context.Background(), "processes of "+n.Name, func() error {
		out, err := exec.Command("ip", "netns", "pids", n.Space).Output()
		if err != nil { // the namespace is not there
			return nil //nolint:nilerr // then nothing is in it
		}
		left := strings.Fields(string(out))
		for _, pid := range left {
			if id, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(id, syscall.SIGKILL)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
}

// process is one that was started here; a number alone might be another's by now.
type process struct {
	PID int `json:"pid"`
	// Started is its start time as /proc has it.
	Started string `json:"started"`
}

func startProcess(argv []string, log string, env []string) (process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return process{}, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, err
	}
	p := process{PID: cmd.Process.Pid, Started: startTime(cmd.Process.Pid)}
	go func() { _ = cmd.Wait() }() // it outlives this program, or is reaped by it
	return p, nil
}

func startTime(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const state, start = 0, 19
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}

func (p process) alive() bool { return p.PID > 0 && p.Started != "" && startTime(p.PID) == p.Started }

func (p process) kill() error {
	if !p.alive() {
		return nil
	}
	_ = syscall.Kill(p.PID, syscall.SIGKILL)
	deadline := time.Now().Add(10 * time.Second)
	for p.alive() {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", p.PID)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}
