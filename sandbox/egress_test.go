package sandbox

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.internal/sandbox/supervisor"
)

// gateway makes a directory with a socket whose connections go to serve.
func gateway(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "net")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	listenAt(t, dir, serve)
	return dir
}

func listenAt(t *testing.T, dir string, serve func(net.Conn)) net.Listener {
	t.Helper()
	t.Chdir(dir) // the name stays short
	l, err := net.Listen("unix", EgressSocket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(EgressSocket, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l
}

// The only way out is the port on loopback, and what goes in there comes out
// at the gateway, both ways, with both ends of the stream.
func TestAllowlistLeadsToTheGateway(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		w.policy.Network = NetworkAllowlist
		w.policy.Egress = gateway(t, func(c net.Conn) {
			b, _ := io.ReadAll(c) // until the client's end
			_, _ = c.Write([]byte(strings.ToUpper(string(b))))
		})
		r := w.run(t, "python3", "-c", `
import os, socket
for i in range(50):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(b"x" * 100000)
    s.shutdown(socket.SHUT_WR)
    n = 0
    while True:
        b = s.recv(65536)
        if not b: break
        assert b.strip(b"X") == b"", b
        n += len(b)
    assert n == 100000, n
print(os.environ["https_proxy"], os.environ["NO_PROXY"], open("/proc/net/dev").read().count(":"))
try: socket.create_connection(("127.0.0.1", 22), 1)
except OSError as e: print("host's loopback", e.errno)
try: os.unlink("/.skerry/net/gateway.sock")
except OSError as e: print("socket", e.errno)
`)
		if want := "http://127.0.0.1:3128 localhost,127.0.0.1,::1 1\nhost's loopback 111\nsocket 30\n"; r.stdout != want {
			t.Errorf("stdout %q, stderr %q (%+v)", r.stdout, r.stderr, r.Exit)
		}
	})
}

// A gateway that is away for a moment is waited for, by new connections.
func TestAllowlistGatewayComesBack(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		dir := filepath.Join(t.TempDir(), "net")
		if err := os.Mkdir(dir, 0o711); err != nil {
			t.Fatal(err)
		}
		w.policy.Network, w.policy.Egress = NetworkAllowlist, dir
		started := filepath.Join(w.workspace, "started")
		go func() {
			for {
				if _, err := os.Stat(started); err == nil || t.Context().Err() != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			l, err := net.Listen("unix", filepath.Join(dir, EgressSocket))
			if err != nil {
				return
			}
			_ = os.Chmod(filepath.Join(dir, EgressSocket), 0o666)
			c, err := l.Accept()
			if err == nil {
				_, _ = c.Write([]byte("back\n"))
				c.Close()
			}
			l.Close()
		}()
		r := w.shell(t, "touch started; exec 3<>/dev/tcp/127.0.0.1/3128; cat <&3")
		if r.stdout != "back\n" {
			t.Errorf("stdout %q, stderr %q (%+v)", r.stdout, r.stderr, r.Exit)
		}
	})
}

// A flood of connections is held back by pid 1 and does not keep the command
// from its exact end.
func TestAllowlistFlood(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		w.policy.Network = NetworkAllowlist
		w.policy.Egress = gateway(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		r := w.run(t, "python3", "-c", `
import socket, sys
kept = []
for i in range(2000):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("127.0.0.1", 3128))
    kept.append(s)
print(len(kept)); sys.exit(5)
`)
		if r.stdout != "2000\n" || r.Kind != supervisor.KindExited || *r.Code != 5 {
			t.Errorf("stdout %q, stderr %q (%+v)", r.stdout, r.stderr, r.Exit)
		}
	})
}

func TestEgressGoesWithAllowlistAlone(t *testing.T) {
	base := Policy{Workspace: "/w", Rootfs: "/r", Init: "/i", Args: []string{"true"}, HostUID: 1, HostGID: 1}
	for _, p := range []Policy{{Network: NetworkAllowlist}, {Egress: "/e"}, {Network: NetworkNone, Egress: "/e"}, {Network: "host"}} {
		b := base
		b.Network, b.Egress = p.Network, p.Egress
		b.HostUID, b.HostGID = uint32(max(os.Getuid(), 1)), uint32(max(os.Getgid(), 1))
		_, err := b.Spec()
		var typed *PolicyError
		if !errors.As(err, &typed) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
