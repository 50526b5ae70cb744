package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// forwardTo runs skerry port-forward and gives the local address.
func (d *dev) forwardTo(id, ports string) (address string, cmd *exec.Cmd, said *lines) {
	d.t.Helper()
	cmd = exec.Command(filepath.Join(binDir, "skerry"), "port-forward", id, ports)
	cmd.Env = d.env()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	said = &lines{}
	go said.read(stderr)
	d.eventually("port-forward listens", func() bool {
		_, after, found := strings.Cut(said.text(), "forwarding ")
		address, _, _ = strings.Cut(after, " ")
		return found
	})
	return address, cmd, said
}

type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) read(from io.Reader) {
	for in := bufio.NewScanner(from); in.Scan(); {
		l.mu.Lock()
		l.all.WriteString(in.Text() + "\n")
		l.mu.Unlock()
	}
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// A web server in a sandbox without a network is reached: a large file comes
// whole, many connections at once do, and it ends as the server does.
func TestPortForward(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, `head -c 30000000 /dev/urandom > big; echo small > small; sha256sum < big; python3 -m http.server --bind 127.0.0.1 8000 2>/dev/null & wait $! || true; echo server gone; sleep 300`, nil)
	address, cmd, _ := d.forwardTo(e.Id, "0:8000")
	fetch := func(path string) (string, error) {
		res, err := http.Get("http://" + address + "/" + path)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		hash := sha256.New()
		_, err = io.Copy(hash, res.Body)
		return fmt.Sprintf("%x", hash.Sum(nil)), err
	}
	d.eventually("the server answers", func() bool { _, err := fetch("small"); return err == nil })
	want := strings.Fields(c.log(t, e.Id, "stdout"))[0]
	if got, err := fetch("big"); err != nil || got != want {
		t.Errorf("the large file has checksum %s, %v; want %s", got, err, want)
	}
	var all sync.WaitGroup
	small := fmt.Sprintf("%x", sha256.Sum256([]byte("small\n")))
	for range 200 {
		all.Go(func() {
			if got, err := fetch("small"); err != nil || got != small {
				t.Errorf("one of many: %s, %v", got, err)
			}
		})
		if time.Now().Nanosecond()%4 == 0 {
			all.Wait() // in bursts below the limit
		}
	}
	all.Wait()
	wrong, _, wrongSaid := d.forwardTo(e.Id, "0:8001")
	if _, err := http.Get("http://" + wrong); err == nil {
		t.Error("a port where nothing listens answers")
	}
	d.eventually("the reason", func() bool {
		return strings.Contains(wrongSaid.text(), problem.PortClosed) || strings.Contains(wrongSaid.text(), "nothing listens on port 8001")
	})
	d.cancel(c, e.Id)
	if err := cmd.Wait(); err != nil {
		t.Errorf("port-forward after the execution's end: %v", err)
	}
}

// streams calls over HTTP/2, as both directions need.
func (d *dev) streams(token string) rpc.ExecutionServiceClient {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	d.t.Cleanup(transport.CloseIdleConnections)
	return rpc.NewExecutionServiceClient(&http.Client{Transport: tlsBearer{token, transport}}, d.ready.Endpoint)
}

const helloServer = `
import socket, threading
s = socket.socket(); s.bind(("127.0.0.1", 9000)); s.listen(128)
print("up", flush=True)
def serve(c):
    n = 0
    while True:
        b = c.recv(65536)
        if not b: break
        n += len(b)
    c.sendall(b"%d bytes" % n); c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// The call itself: both directions end apart, limits and errors are typed, and
// the execution's end is the end.
func TestPortForwardCall(t *testing.T) {
	d := newDev(t)
	c, token := d.agent("forwarder")
	_, other := d.agent("other")
	c.write(t, "server.py", helloServer)
	e := c.start(t, "python3 server.py", nil)
	d.eventually("the server is up", func() bool { return c.log(t, e.Id, "") == "up\n" })
	open := func(ctx context.Context, token, id string, port uint32) (*connect.BidiStreamForClient[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse], error) {
		s := d.streams(token).PortForward(ctx)
		_ = s.Send(&skerryv1.PortForwardRequest{ExecutionId: id, Port: port})
		_, err := s.Receive()
		return s, err
	}
	s, err := open(t.Context(), token, e.Id, 9000)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := s.Send(&skerryv1.PortForwardRequest{Data: make([]byte, 50000)}); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Send(&skerryv1.PortForwardRequest{End: true})
	var said strings.Builder
	ended := false
	for {
		m, err := s.Receive()
		if err != nil {
			break
		}
		said.Write(m.Data)
		ended = ended || m.End
	}
	if said.String() != "5000000 bytes" || !ended {
		t.Errorf("the server said %q, its end was told: %v", said.String(), ended)
	}
	for name, tc := range map[string]struct {
		token, id string
		port      uint32
		reason    string
	}{
		"another agent's": {other, e.Id, 9000, problem.NotFound},
		"no such":         {token, e.Id[:len(e.Id)-6] + "000000", 9000, problem.NotFound},
		"no port":         {token, e.Id, 0, problem.InvalidArgument},
		"closed port":     {token, e.Id, 9001, problem.PortClosed},
	} {
		if _, err := open(t.Context(), tc.token, tc.id, tc.port); problem.Of(err).GetReason() != tc.reason {
			t.Errorf("%s: %v, want %s", name, err, tc.reason)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var held []*connect.BidiStreamForClient[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]
	for i := range 64 {
		s, err := open(ctx, token, e.Id, 9000)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		held = append(held, s)
	}
	if _, err := open(ctx, token, e.Id, 9000); problem.Of(err).GetReason() != problem.LimitExceeded {
		t.Errorf("connection 65: %v", err)
	}
	cancel()
	for _, s := range held {
		_ = s.CloseRequest()
	}
	d.eventually("connections that were closed are not counted", func() bool {
		s, err = open(t.Context(), token, e.Id, 9000)

		return err == nil
	})
	d.cancel(c, e.Id)
	for err = nil; err == nil; { // the server's end, then the stream's
		_, err = s.Receive()
	}
	if _, err := open(t.Context(), token, e.Id, 9000); problem.Of(err).GetReason() != problem.NotRunning {
		t.Errorf("after the end: %v", err)
	}
}

type grpcOrConnect = rpc.ExecutionServiceClient

// grpcStreams calls like streams, by gRPC.
func (d *dev) grpcStreams(token string) grpcOrConnect {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	d.t.Cleanup(transport.CloseIdleConnections)
	return rpc.NewExecutionServiceClient(&http.Client{Transport: tlsBearer{token, transport}}, d.ready.Endpoint, connect.WithGRPC())
}
