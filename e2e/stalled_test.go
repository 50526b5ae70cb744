package e2e

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

type portStream = connect.BidiStreamForClient[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]

// openPort gives a forwarded connection that is made.
func (d *dev) openPort(ctx context.Context, token, id string, port uint32) (*portStream, error) {
	s := d.streams(token).PortForward(ctx)
	_ = s.Send(&skerryv1.PortForwardRequest{ExecutionId: id, Port: port})
	_, err := s.Receive()
	return s, err
}

// deafServer accepts and neither reads nor closes; from its second port it talks
// without end.
const deafServer = `
import socket, threading
def listen(port):
    s = socket.socket(); s.bind(("127.0.0.1", port)); s.listen(128); return s
deaf, talker = listen(9000), listen(9001)
print("up", flush=True)
held = []
def talk(c):
    try:
        while True: c.sendall(b"x" * 65536)
    except OSError: pass
def talkers():
    while True: threading.Thread(target=talk, args=(talker.accept()[0],), daemon=True).start()
threading.Thread(target=talkers, daemon=True).start()
while True: held.append(deaf.accept()[0])
`

// Connections on which one side does not read hold up nobody else on the link
// between coordinator and runner (I10).
func TestStalledForwardsHoldUpNobody(t *testing.T) {
	d := newDev(t)
	c, token := d.agent("staller")
	c.write(t, "server.py", deafServer)
	e := c.start(t, "python3 server.py", nil)
	d.eventually("the server is up", func() bool { return c.log(t, e.Id, "") == "up\n" })
	other, _ := d.agent("bystander")
	works := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		res, err := other.ex.RunShell(ctx, connect.NewRequest(&skerryv1.RunShellRequest{Command: "head -c 100000 /dev/zero | tr '\\0' a"}))
		if err != nil || len(res.Msg.Execution.Stdout.Text) == 0 {
			t.Fatalf("%s: another agent's call: %v, %v", what, res, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for port, what := range map[uint32]string{9000: "a server that does not read", 9001: "clients that do not read"} {
		for range 30 {
			s, err := d.openPort(ctx, token, e.Id, port)
			if err != nil {
				t.Fatal(err)
			}
			if port == 9001 {
				continue
			}
			go func() { // until it is stuck
				for s.Send(&skerryv1.PortForwardRequest{Data: make([]byte, 60000)}) == nil {
				}
			}()
		}
		time.Sleep(3 * time.Second) // what is stuck tells nobody
		works(what)
	}
	d.cancel(c, e.Id)
}
