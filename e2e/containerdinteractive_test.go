package e2e

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Input, terminals and forwarded ports work alike in a container, also when the
// daemon is killed in between.
func TestContainerdInteractive(t *testing.T) {
	d, ctrd := newContainerdDev(t, "")
	c := d.admin()
	write := func(id string, offset uint64, data string, end bool) uint64 {
		t.Helper()
		res, err := c.ex.WriteInput(t.Context(), connect.NewRequest(&skerryv1.WriteInputRequest{ExecutionId: id, Offset: offset, Data: []byte(data), Close: end, Writer: "w"}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Accepted
	}
	said := func(id, text string) {
		t.Helper()
		d.eventually(fmt.Sprintf("output %q", text), func() bool { return strings.Contains(c.log(t, id, ""), text) })
	}
	e := c.startInteractive(t, "echo up; cat", &skerryv1.Interactive{Stdin: true})
	said(e.Id, "up\n")
	at := write(e.Id, 0, "before\n", false)
	said(e.Id, "before\n")
	d.kill()
	d.start()
	c = d.admin()
	write(e.Id, at, "after\n", true)
	end := c.wait(t, e.Id)
	if wantState(t, end, "completed", "exited"); c.log(t, e.Id, "") != "up\nbefore\nafter\n" {
		t.Errorf("output %q", c.log(t, e.Id, ""))
	}
	term := c.startInteractive(t, "tty; stty size; echo ready; trap 'stty size; exit 6' WINCH; while :; do sleep 0.05; done",
		&skerryv1.Interactive{Terminal: &skerryv1.TerminalOptions{Rows: 30, Cols: 90, Term: "vt100"}})
	said(term.Id, "/dev/pts/0\r\n30 90\r\nready\r\n")
	d.eventually("the command takes the new size", func() bool {
		_, err := c.ex.ResizeTerminal(t.Context(), connect.NewRequest(&skerryv1.ResizeTerminalRequest{ExecutionId: term.Id, Rows: 41, Cols: 97}))
		if err == nil {
			_, err = c.ex.ResizeTerminal(t.Context(), connect.NewRequest(&skerryv1.ResizeTerminalRequest{ExecutionId: term.Id, Rows: 40, Cols: 97}))
		}
		return err != nil || strings.Contains(c.log(t, term.Id, ""), "40 97")
	})
	if end := c.wait(t, term.Id); end.Verdict.GetExitCode() != 6 {
		t.Errorf("record %v", end.Verdict)
	}
	served := d.judge(c)
	s, err := d.openPort(t.Context(), d.ready.Token, served.Id, 9000)
	if err == nil {
		err = s.Send(&skerryv1.PortForwardRequest{Data: []byte("x"), End: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	said(served.Id, "clean\n")
	d.cancel(c, served.Id)
	noContainers(d, ctrd)
}
