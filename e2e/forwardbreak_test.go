package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// judgeServer tells how each connection to its first port ends, talks without
// end on the second, and on the third breaks off.
const judgeServer = `
import socket, struct, threading
def listen(port):
    s = socket.socket(); s.bind(("127.0.0.1", port)); s.listen(128); return s
def judge(c):
    try:
        while c.recv(65536): pass
        print("clean", flush=True)
    except OSError: print("broken", flush=True)
def talk(c):
    try:
        while True: c.sendall(b"x" * 65536)
    except OSError: pass
def reset(c):
    c.sendall(b"some"); c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); c.close()
def serve(s, f):
    while True: threading.Thread(target=f, args=(s.accept()[0],), daemon=True).start()
ports = [listen(9000), listen(9001), listen(9002)]
for s, f in zip(ports[1:], (talk, reset)): threading.Thread(target=serve, args=(s, f), daemon=True).start()
print("up", flush=True)
serve(ports[0], judge)
`

func (d *dev) judge(c *client) *skerryv1.Execution {
	d.t.Helper()
	c.write(d.t, "server.py", judgeServer)
	e := c.start(d.t, "python3 server.py", nil)
	d.eventually("the server is up", func() bool { return c.log(d.t, e.Id, "") == "up\n" })
	return e
}

// Whatever breaks a connection before its end, neither side takes the part for
// the whole.
func TestBrokenForwardsLookBroken(t *testing.T) {
	d := newDevWith(t, []string{"--listen", freePort(t)})
	c, token := d.admin(), d.ready.Token // as the command calls
	e := d.judge(c)
	said := "up\n"
	verdict := func(what, want string) {
		t.Helper()
		said += want + "\n"
		d.eventually("the server's verdict: "+what, func() bool { return strings.Count(c.log(t, e.Id, ""), "\n") >= strings.Count(said, "\n") })
		if got := c.log(t, e.Id, ""); got != said {
			t.Fatalf("%s: the server said %q, want %q", what, got, said)
		}
	}
	open := func(ctx context.Context) *portStream {
		t.Helper()
		s, err := d.openPort(ctx, token, e.Id, 9000)
		if err == nil {
			err = s.Send(&skerryv1.PortForwardRequest{Data: []byte("part")})
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(t.Context())
	_ = s.Send(&skerryv1.PortForwardRequest{End: true})
	verdict("an end in order", "clean")
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		s = open(ctx)
		cancel()
		_ = s.CloseRequest()
		verdict("a client that went away", "broken")
	}
	// By way of the command: a local client, which ends one way or the other.
	address, cmd, _ := d.forwardTo(e.Id, "0:9000")
	local := func() *net.TCPConn {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_, err = conn.Write([]byte("part"))
		}
		if err != nil {
			t.Fatal(err)
		}
		return conn.(*net.TCPConn)
	}
	_ = local().Close()
	verdict("a local client's end", "clean")
	conn := local()
	_ = conn.SetLinger(0)
	_ = conn.Close()
	verdict("a local client's reset", "broken")
	conn = local()
	time.Sleep(200 * time.Millisecond) // the part has passed, most likely
	_ = cmd.Process.Kill()
	verdict("the command was killed", "broken")
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the local side of a killed command: %v", err)
	}
	open(t.Context())
	d.kill()
	d.start()
	verdict("the daemon was killed", "broken")
	d.cancel(c, e.Id)
}

// The local client of a port-forward sees the sandbox's end and a server's reset
// as what they are.
func TestBrokenForwardsLookBrokenHere(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := d.judge(c)
	address, _, _ := d.forwardTo(e.Id, "0:9002")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("x"))
	if b, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a server's reset: %q, %v", b, err)
	}
	address, cmd, _ := d.forwardTo(e.Id, "0:9001")
	if conn, err = net.Dial("tcp", address); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, conn, 1<<20); err != nil {
		t.Fatal(err)
	}
	d.cancel(c, e.Id)
	if _, err := io.Copy(io.Discard, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the execution's end in the middle of an answer: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("port-forward: %v", err)
	}
}

// A connection that carries nothing is closed after a time.
func TestIdleForwardIsClosed(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "runnerd.yaml"), "forward_idle: 1s\n")
	d := newDevWith(t, []string{"--runner-config", file})
	c, token := d.agent("forwarder")
	e := d.judge(c)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := d.openPort(ctx, token, e.Id, 9000)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 6 { // not idle
		if err := s.Send(&skerryv1.PortForwardRequest{Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	_, err = s.Receive()
	if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || p.GetLimit() == "" || time.Since(began) < 2500*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	d.eventually("the server sees a break", func() bool { return c.log(t, e.Id, "") == "up\nbroken\n" })
	d.cancel(c, e.Id)
}

// Calls for another agent's execution are answered as for one that is not there,
// over JSON and over gRPC.
func TestInteractiveCallsLeakNoExistence(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	ended := c.sh(t, "true") // the two share a workspace
	term := c.startInteractive(t, "cat", &skerryv1.Interactive{Terminal: &skerryv1.TerminalOptions{}})
	_, token := d.agent("stranger")
	fake := term.Id[:len(term.Id)-6] + "000000"
	for name, body := range map[string]string{"WriteInput": `"data":"eA=="`, "ResizeTerminal": `"rows":10,"cols":10`} {
		_, made := d.post("/skerry.v1.ExecutionService/"+name, token, fmt.Sprintf(`{"executionId":%q,%s}`, fake, body))
		for _, id := range []string{term.Id, ended.Id} {
			status, real := d.post("/skerry.v1.ExecutionService/"+name, token, fmt.Sprintf(`{"executionId":%q,%s}`, id, body))
			if status != 404 || strings.ReplaceAll(real, id, "ID") != strings.ReplaceAll(made, fake, "ID") {
				t.Errorf("%s tells the two apart, or answers: %d\n%s\n%s", name, status, real, made)
			}
		}
	}
	for protocol, client := range map[string]grpcOrConnect{"connect": d.streams(token), "grpc": d.grpcStreams(token)} {
		errs := map[string]func(id string) error{
			"WriteInput": func(id string) error {
				_, err := client.WriteInput(t.Context(), connect.NewRequest(&skerryv1.WriteInputRequest{ExecutionId: id, Data: []byte("x")}))
				return err
			},
			"ResizeTerminal": func(id string) error {
				_, err := client.ResizeTerminal(t.Context(), connect.NewRequest(&skerryv1.ResizeTerminalRequest{ExecutionId: id, Rows: 9, Cols: 9}))
				return err
			},
			"PortForward": func(id string) error {
				s := client.PortForward(t.Context())
				_ = s.Send(&skerryv1.PortForwardRequest{ExecutionId: id, Port: 9})
				_, err := s.Receive()
				return err
			},
		}
		for name, call := range errs {
			made := call(fake)
			for _, id := range []string{term.Id, ended.Id} {
				err := call(id)
				if problem.Of(err).GetReason() != problem.NotFound || strings.ReplaceAll(err.Error(), id, "ID") != strings.ReplaceAll(made.Error(), fake, "ID") {
					t.Errorf("%s by %s: %v, of one that is not there: %v", name, protocol, err, made)
				}
			}
		}
	}
	d.cancel(c, term.Id)
	if e := c.get(t, term.Id); e.InputAccepted != 0 {
		t.Errorf("a stranger has typed: %v", e)
	}
}
