package sandboxtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Containerd is a private containerd of one test: its own root, state and socket.
type Containerd struct {
	t       testing.TB
	dir     string
	cmd     *exec.Cmd
	Address string
	// Path is where it looks for its shim and runc, from the next Start on.
	Path string
}

// StartContainerd starts one and ends it, with all of its shims, after the test.
// It needs root, containerd and runc; without root the test is skipped even if
// probes are required, as only root can use containerd.
func StartContainerd(t testing.TB) *Containerd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: only a daemon that is root uses containerd")
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if _, err := lookPath(program); err != nil {
			Require(t, fmt.Errorf("this machine has no %s: %w", program, err))
		}
	}
	dir, err := os.MkdirTemp("", "ctrd") // short, for the socket's path
	if err == nil {
		err = os.Chmod(dir, 0o711) // as /run/containerd: the container's root must get through
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{t: t, dir: dir, Address: filepath.Join(dir, "sock"), Path: os.Getenv("PATH") + ":/usr/sbin"}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), c.Address)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.cleanup)
	c.Start()
	return c
}

// lookPath also looks where Debian has runc.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + program)
	}
	return path, err
}

// Start starts it, again after Kill, and returns when it answers.
func (c *Containerd) Start() {
	c.t.Helper()
	program, err := lookPath("containerd")
	if err != nil {
		c.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(program, "--config", filepath.Join(c.dir, "config.toml"))
	c.cmd.Env = append(os.Environ(), "PATH="+c.Path)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = c.ctr(ctx, "version")
		cancel()
		if err == nil {
			return
		}
	}
	c.t.Fatalf("containerd does not answer: %v\n%s", err, c.Log())
}

// Kill is kill -9. What it runs goes on.
func (c *Containerd) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// Freeze stops it, without an end of its connections, until thaw is called or it is killed.
func (c *Containerd) Freeze() (thaw func()) {
	c.t.Helper()
	process := c.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

// Log is what it said.
func (c *Containerd) Log() string {
	b, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	return string(b)
}

// Ctr runs the client with arguments in the namespace and gives its output.
func (c *Containerd) Ctr(namespace string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := c.ctr(ctx, append([]string{"--namespace", namespace}, args...)...)
	if err != nil {
		c.t.Fatalf("ctr %v: %v: %s", args, err, out)
	}
	return out
}

func (c *Containerd) ctr(ctx context.Context, args ...string) (string, error) {
	if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Address); err != nil {
		return "", err
	} else if err := conn.Close(); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address", c.Address}, args...)...).CombinedOutput()
	return string(out), err
}

func (c *Containerd) cleanup() {
	c.Kill()
	for _, pid := range c.Shims() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, point := range c.Mounts() {
		_ = syscall.Unmount(point, syscall.MNT_DETACH)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Errorf("containerd's directory: %v", err)
	}
}

// Shims are the processes of containerd-shim that serve this containerd.
func (c *Containerd) Shims() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		if err == nil && strings.HasSuffix(args[0], "containerd-shim-runc-v2") && strings.Contains(string(line), c.Address) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Mounts are the mount points in its directories.
func (c *Containerd) Mounts() (points []string) {
	b, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], c.dir+"/") {
			points = append(points, f[1])
		}
	}
	return points
}
