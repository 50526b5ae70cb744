package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// The terminal is as before also when the output goes to a program that ends.
func TestConsoleWithBrokenOutput(t *testing.T) {
	d := newDev(t)
	c := &console{d: d}
	c.openTerminal()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(filepath.Join(binDir, "skerry"), "sh", "-it")
	c.cmd.Env = append(d.env(), "TERM=vt100")
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = c.slave, w, c.slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.slave.Close(); _ = c.master.Close() })
	go c.read()
	_ = w.Close()
	if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	c.write("echo more\r")
	if code := c.end(); code != 125 {
		t.Errorf("exit code %d, want 125", code)
	}
	res, err := d.admin().ex.ListExecutions(t.Context(), connect.NewRequest(&skerryv1.ListExecutionsRequest{}))
	if err != nil || len(res.Msg.Executions) != 1 {
		t.Fatalf("executions: %v, %v", res, err)
	}
	d.cancel(d.admin(), res.Msg.Executions[0].Id)
}
