package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// interactive is a fixture whose command takes input.
func interactive(t testing.TB, terminal *WindowSize, argv ...string) *fixture {
	t.Helper()
	f := newFixture(t, argv...)
	f.spec.Timeout = 20 * time.Second
	f.spec.Input = &Input{Terminal: terminal}
	f.spec.Files[0].Args = append(f.spec.Files[0].Args, "--setenv", "TERM", "dumb", "--setenv", "PS1", "$ ")
	return f
}

var size24x80 = &WindowSize{24, 80}

// typist writes one after the other.
type typist struct {
	t      testing.TB
	h      *Handle
	offset uint64
}

func (y *typist) write(text string) {
	y.t.Helper()
	for data := []byte(text); len(data) > 0; {
		s, err := y.h.WriteInput(y.t.Context(), InputChunk{Writer: "t", Offset: y.offset, Data: data[:min(len(data), MaxInputChunk)]})
		if err != nil {
			y.t.Fatalf("write %.40q: %v", text, err)
		}
		if s.Closed {
			y.t.Fatalf("write %.40q: the input is closed", text)
		}
		y.offset, data = s.Accepted, data[s.Written:]
	}
}

func (y *typist) close() {
	y.t.Helper()
	if _, err := y.h.WriteInput(y.t.Context(), InputChunk{Writer: "t", Offset: y.offset, Close: true}); err != nil {
		y.t.Fatalf("close: %v", err)
	}
}

// await waits until the output has text, and gives all of it so far.
func (f *fixture) await(t testing.TB, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all bytes.Buffer
	for page, err := range OpenLog(f.dir).Follow(ctx, 0) {
		if err != nil {
			break
		}
		for _, r := range page.Records {
			all.Write(r.Data)
		}
		if strings.Contains(all.String(), text) {
			return all.String()
		}
	}
	t.Fatalf("the output never has %q: %q", text, all.String())
	return ""
}

func TestInputStream(t *testing.T) {
	f := interactive(t, nil, "sh", "-c", "read a; echo got $a; read b; echo then $b; cat /dev/stdin; echo end")
	h := f.start(t)
	y := &typist{t: t, h: h}
	y.write("one\n")
	f.await(t, "got one\n")
	y.write("two\nrest")
	f.await(t, "then two\n")
	y.close()
	exit := wait(t, h)
	out, _ := f.output(t)
	if out != "got one\nthen two\nrestend\n" || code(exit) != 0 || exit.InputBytes != 12 {
		t.Errorf("output %q, exit %+v", out, exit)
	}
	s, err := h.WriteInput(t.Context(), InputChunk{Offset: 0, Data: []byte("late")})
	if err != nil || !s.Closed || s.Accepted != 12 || s.Written != 0 {
		t.Errorf("input after the end: %+v, %v", s, err)
	}
}

// Much input goes through whole while the output is followed, though each chunk
// is sent twice.
func TestInputStreamOfTenMegabytes(t *testing.T) {
	f := interactive(t, nil, "cat")
	f.spec.Log = LogLimits{HeadBytes: 16 << 20, TailBytes: 16 << 20}
	h := f.start(t)
	data := make([]byte, 10<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	sum := make(chan [32]byte, 1)
	go func() {
		hash := sha256.New()
		for page, err := range OpenLog(f.dir).Follow(t.Context(), 0) {
			if err != nil {
				break
			}
			for _, r := range page.Records {
				hash.Write(r.Data)
			}
		}
		sum <- [32]byte(hash.Sum(nil))
	}()
	for offset := 0; offset < len(data); {
		c := InputChunk{Writer: "w", Offset: uint64(offset), Data: data[offset:min(offset+MaxInputChunk, len(data))]}
		s, err := h.WriteInput(t.Context(), c)
		if err == nil {
			c.Data = c.Data[:s.Written]
			_, err = h.WriteInput(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
		offset += s.Written
	}
	(&typist{t: t, h: h, offset: uint64(len(data))}).close()
	exit := wait(t, h)
	if got := <-sum; got != sha256.Sum256(data) || code(exit) != 0 || exit.InputBytes != uint64(len(data)) {
		t.Errorf("the output has another checksum than the input; %+v", exit)
	}
}

// A command that does not read holds up its writer, whose chunk is answered
// when there is room; nothing is lost.
func TestInputWaitsForRoom(t *testing.T) {
	f := interactive(t, nil, "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.02; done; wc -c")
	h := f.start(t)
	f.await(t, "up")
	var offset uint64
	chunk := bytes.Repeat([]byte("x"), MaxInputChunk)
	for offset < inputBuffer+64<<10 { // the shim's buffer and the kernel's
		s, err := h.WriteInput(t.Context(), InputChunk{Offset: offset, Data: chunk})
		if err != nil || s.Written == 0 {
			t.Fatalf("at %d: %+v, %v", offset, s, err)
		}
		offset += uint64(s.Written)
	}
	answered := make(chan InputState, 1)
	go func() {
		s, _ := h.WriteInput(t.Context(), InputChunk{Offset: offset, Data: chunk})
		answered <- s
	}()
	// The shim goes on to answer others.
	if status, err := h.Status(t.Context()); err != nil || status.InputBytes != offset {
		t.Errorf("status %+v, %v", status, err)
	}
	select {
	case s := <-answered:
		t.Errorf("a chunk that finds no room is answered at once: %+v", s)
	case <-time.After(200 * time.Millisecond):
	}
	if err := os.WriteFile(filepath.Join(f.workspace, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if s := <-answered; s.Written != 0 || s.Accepted != offset {
		t.Errorf("when there is room: %+v, want the state", s)
	}
	(&typist{t: t, h: h, offset: offset}).close()
	wait(t, h)
	if out, _ := f.output(t); out != fmt.Sprintf("up\n%d\n", offset) {
		t.Errorf("output %q, written %d", out, offset)
	}
}

// A command that closed its input is no error of the shim, and it tells.
func TestInputClosedByTheCommand(t *testing.T) {
	f := interactive(t, nil, "sh", "-c", "exec <&-; echo closed; sleep 30")
	h := f.start(t)
	f.await(t, "closed")
	deadline := time.Now().Add(10 * time.Second)
	for offset := uint64(0); ; {
		s, err := h.WriteInput(t.Context(), InputChunk{Offset: offset, Data: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		if s.Closed {
			break
		}
		offset = s.Accepted
		if time.Now().After(deadline) {
			t.Fatal("the closed input is not noticed")
		}
	}
	if status, err := h.Status(t.Context()); err != nil || status.State != StateRunning {
		t.Errorf("the shim after it: %+v, %v", status, err)
	}
}

func TestInputPendingAtTheEnd(t *testing.T) {
	f := interactive(t, nil, "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.02; done; exit 3")
	h := f.start(t)
	f.await(t, "up")
	(&typist{t: t, h: h}).write(strings.Repeat("x", inputBuffer+32<<10))
	if err := os.WriteFile(filepath.Join(f.workspace, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, h); exit.Kind != KindExited || code(exit) != 3 {
		t.Errorf("%+v", exit)
	}
}

func TestInputRefused(t *testing.T) {
	f := newFixture(t, "sh", "-c", "echo up; sleep 30")
	h := f.start(t)
	f.await(t, "up")
	if _, err := h.WriteInput(t.Context(), InputChunk{Data: []byte("x")}); !errors.Is(err, ErrNotInteractive) {
		t.Errorf("input: %v", err)
	}
	if err := h.Resize(t.Context(), WindowSize{10, 10}); !errors.Is(err, ErrNoTerminal) {
		t.Errorf("resize: %v", err)
	}
	g := interactive(t, nil, "cat")
	hg := g.start(t)
	var conflict *InputOffsetError
	if _, err := hg.WriteInput(t.Context(), InputChunk{Offset: 5, Data: []byte("x")}); !errors.As(err, &conflict) || !conflict.Gap || conflict.Accepted != 0 {
		t.Errorf("a gap: %v", err)
	}
	for name, spec := range map[string]Spec{
		"stdin too": {Argv: []string{"/x"}, Stdin: "stdin", Input: &Input{}},
		"no rows":   {Argv: []string{"/x"}, Input: &Input{Terminal: &WindowSize{0, 80}}},
		"wide":      {Argv: []string{"/x"}, Input: &Input{Terminal: &WindowSize{24, 1001}}},
	} {
		if _, err := Start(t.Context(), shimBinary, t.TempDir(), spec); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v, want ErrSpec", name, err)
		}
	}
}

func TestTerminal(t *testing.T) {
	f := interactive(t, size24x80, "bash", "--norc", "--noprofile", "-i")
	h := f.start(t)
	y := &typist{t: t, h: h}
	f.await(t, "$ ")
	y.write("tty; stty size; stty -a | grep -o iutf8; echo err >&2\r")
	f.await(t, "24 80\r\niutf8\r\nerr\r\n")
	if out := f.await(t, "/dev/pts/"); strings.Contains(out, "no job control") {
		t.Errorf("no job control: %q", out)
	}
	// What is typed before a program changed the terminal's mode is read in the
	// old one: each step waits for the one before.
	y.write("trap 'echo resized $(stty size)' WINCH; echo trap''set\r")
	f.await(t, "trapset\r\n$ ")
	if err := h.Resize(t.Context(), WindowSize{50, 132}); err != nil {
		t.Fatal(err)
	}
	y.write("\r")
	f.await(t, "resized 50 132")
	// Job control: a job is stopped, listed, ended, and the shell goes on.
	y.write("echo cat''runs; cat\r")
	f.await(t, "catruns\r\n")
	y.write("typed\r")
	f.await(t, "typed\r\ntyped\r\n")
	y.write("\x1a")
	f.await(t, "Stopped")
	f.await(t, "cat\r\n$ ")
	y.write("kill -9 %1; wait 2>/dev/null; echo shell goes on\r")
	f.await(t, "\nshell goes on")
	y.write("exit 9\r")
	exit := wait(t, h)
	if exit.Kind != KindExited || code(exit) != 9 || exit.Log.StderrBytes != 0 {
		out, _ := f.output(t)
		t.Errorf("%+v\n%q", exit, out)
	}
}

func TestTerminalInterrupt(t *testing.T) {
	f := interactive(t, size24x80, "sh", "-c", "echo up; exec sleep 60")
	h := f.start(t)
	f.await(t, "up")
	(&typist{t: t, h: h}).write("\x03")
	if exit := wait(t, h); exit.Kind != KindSignaled || exit.Signal != "SIGINT" {
		t.Errorf("%+v", exit)
	}
}

// A program that takes single keys, as an editor does.
const rawProgram = `
import os, sys, termios, tty
old = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"raw\r\n")
keys = b""
while not keys.endswith(b"q"):
    keys += os.read(0, 100)
termios.tcsetattr(0, termios.TCSADRAIN, old)
print("keys", keys.hex(), os.environ["TERM"], os.isatty(2))
`

func TestTerminalRawMode(t *testing.T) {
	f := interactive(t, size24x80, "python3", "-c", rawProgram)
	h := f.start(t)
	f.await(t, "raw\r\n")
	y := &typist{t: t, h: h}
	y.write("\x03")
	y.write("\x1b[A\x00\r")
	y.write("q")
	exit := wait(t, h)
	out, _ := f.output(t)
	if out != "raw\r\nkeys 031b5b41000d71 dumb True\r\n" || code(exit) != 0 {
		t.Errorf("output %q, %+v", out, exit)
	}
}

// A terminal whose command does not read holds much and then makes the writer
// wait; all of it arrives.
func TestTerminalPaste(t *testing.T) {
	f := interactive(t, size24x80, "python3", "-c", `
import os, sys, time, tty, hashlib
tty.setraw(0)
os.write(1, b"up")
while not os.path.exists("go"): time.sleep(0.02)
h, n = hashlib.sha256(), 0
while n < 300000:
    b = os.read(0, 65536)
    n += len(b); h.update(b)
print(n, h.hexdigest())
`)
	h := f.start(t)
	f.await(t, "up")
	data := strings.Repeat("0123456789", 30000)
	written := make(chan struct{})
	go func() {
		defer close(written)
		(&typist{t: t, h: h}).write(data)
	}()
	if err := os.WriteFile(filepath.Join(f.workspace, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	exit := wait(t, h)
	<-written
	out, _ := f.output(t)
	if want := fmt.Sprintf("300000 %x", sha256.Sum256([]byte(data))); !strings.Contains(out, want) {
		t.Errorf("output %q, want %s; %+v", out, want, exit)
	}
}

// The end of the input hangs the terminal up, and what was said last is kept.
func TestTerminalHangUp(t *testing.T) {
	f := interactive(t, size24x80, "bash", "-c", `trap 'for i in $(seq 2000); do echo last words $i; done; exit 4' HUP; echo up; while :; do sleep 0.05; done`)
	h := f.start(t)
	f.await(t, "up")
	(&typist{t: t, h: h}).close()
	exit := wait(t, h)
	out, _ := f.output(t)
	if code(exit) != 4 || !strings.HasSuffix(out, "last words 2000\r\n") {
		t.Errorf("%+v; output ends %q", exit, out[max(0, len(out)-60):])
	}
}

// An interactive shell ignores SIGTERM; it ends all the same, before it is killed.
func TestTerminalCancel(t *testing.T) {
	f := interactive(t, size24x80, "bash", "--norc", "--noprofile", "-i")
	f.spec.Grace = 30 * time.Second
	h := f.start(t)
	f.await(t, "$ ")
	began := time.Now()
	if err := h.Cancel(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, h); exit.Kind != KindCancelled || exit.Signal == "SIGKILL" {
		t.Errorf("after %s: %+v", time.Since(began), exit)
	}
}

// A process left behind keeps the terminal open no longer than a pipe.
func TestTerminalWithStragglers(t *testing.T) {
	f := interactive(t, size24x80, "bash", "-c", "(trap '' HUP; sleep 60) & echo done")
	exit := f.run(t)
	if out, _ := f.output(t); out != "done\r\n" || code(exit) != 0 {
		t.Errorf("output %q, %+v", out, exit)
	}
}

func TestInteractiveShimStaysSmall(t *testing.T) {
	f := interactive(t, size24x80, "bash", "--norc", "--noprofile", "-i")
	h := f.start(t)
	y := &typist{t: t, h: h}
	f.await(t, "$ ")
	for i := range 200 {
		y.write(fmt.Sprintf("echo line %d of many\r", i))
	}
	f.await(t, "\nline 199 of many")
	status, err := h.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rss := residentBytes(t, status.ShimPID)
	t.Logf("the shim has %d KiB resident", rss>>10)
	if rss > 8<<20 {
		t.Errorf("the shim has %d bytes resident, want at most 8 MiB", rss)
	}
	y.write("exit\r")
	wait(t, h)
}

const echoServer = `
import socket, sys, threading
s = socket.socket(socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET)
s.bind(("::1" if sys.argv[1] == "6" else "127.0.0.1", 8000)); s.listen(64)
print("up", flush=True)
def serve(c):
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.sendall(b"bye"); c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

func TestConnect(t *testing.T) {
	for _, family := range []string{"4", "6"} {
		t.Run("IPv"+family, func(t *testing.T) {
			f := newFixture(t, "python3", "-c", echoServer, family)
			f.spec.Files[0].Args = append([]string{"--unshare-net"}, f.spec.Files[0].Args...)
			h := f.start(t)
			f.await(t, "up")
			var all []*os.File
			for range 30 {
				c, err := h.Connect(t.Context(), 8000)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				all = append(all, c)
			}
			for i, c := range all {
				_ = unix.SetNonblock(int(c.Fd()), false)
				if _, err := fmt.Fprintf(c, "hello %d", i); err != nil {
					t.Fatal(err)
				}
				_ = unix.Shutdown(int(c.Fd()), unix.SHUT_WR)
				b, err := io.ReadAll(c)
				if err != nil || string(b) != fmt.Sprintf("hello %dbye", i) {
					t.Errorf("connection %d said %q, %v", i, b, err)
				}
			}
			if _, err := h.Connect(t.Context(), 8001); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("where nothing listens: %v", err)
			}
			_ = h.Cancel(t.Context(), "")
			wait(t, h)
			if _, err := h.Connect(t.Context(), 8000); !errors.Is(err, ErrNotRunning) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// A listener whose queue is full delays only who asks for it.
func TestConnectToAFullQueue(t *testing.T) {
	f := newFixture(t, "python3", "-c", `
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 8000)); s.listen(0)
held = []
for i in range(4):
    c = socket.socket(); c.setblocking(False)
    try: c.connect(("127.0.0.1", 8000))
    except BlockingIOError: pass
    held.append(c)
print("up", flush=True)
time.sleep(60)
`)
	f.spec.Files[0].Args = append([]string{"--unshare-net"}, f.spec.Files[0].Args...)
	h := f.start(t)
	f.await(t, "up")
	failed := make(chan error, 1)
	go func() {
		_, err := h.Connect(t.Context(), 8000)
		failed <- err
	}()
	if _, err := h.Connect(t.Context(), 8001); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("another port meanwhile: %v", err)
	}
	if err := <-failed; !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a full queue: %v", err)
	}
	if status, err := h.Status(t.Context()); err != nil || status.State != StateRunning {
		t.Errorf("the shim: %+v, %v", status, err)
	}
}

// A client that a busy host holds up beyond the shim's patience asks again: its
// request, such as a cancel, must not be taken for one that came too late.
func TestAskAgainWhenCutOff(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, sockFile)}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 4); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			conn, _, err := unix.Accept(fd)
			if err != nil {
				served <- err
				return
			}
			if i < 2 {
				unix.Close(conn)
				continue
			}
			buf := make([]byte, 64)
			n, _ := unix.Read(conn, buf)
			served <- send(conn, buf[:n])
			unix.Close(conn)
			return
		}
	}()
	b, err := (&Handle{dir: dir}).ask(t.Context(), askCancel)
	if err != nil || string(b) != askCancel {
		t.Errorf("answer %q, %v", b, err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// The sandbox's way out to the gateway is no way in.
func TestConnectIsNotForTheProxy(t *testing.T) {
	f := newFixture(t, "sh", "-c", "echo up; sleep 60")
	f.spec.Files[0].Args = append([]string{"--unshare-net"}, f.spec.Files[0].Args...)
	f.spec.Forward = &Forward{Port: 3128, Socket: "/tmp/gateway"}
	h := f.start(t)
	f.await(t, "up")
	if c, err := h.Connect(t.Context(), 3128); !errors.Is(err, ErrGatewayPort) {
		t.Errorf("connection %v, %v", c, err)
	}
	if _, err := h.Connect(t.Context(), 3129); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("another port: %v", err)
	}
}

// A port that the kernel also gives to clients may be given to the very socket
// that looks for a listener there.
func TestConnectDoesNotReachItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a network name space of its own")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with its name space
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := loopbackUp(); err != nil {
				return err
			}
			// Of all ports these two alone are given out.
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0); err != nil {
				return err
			}
			for i := range uint16(32) {
				c, err := dialLoopback(40000 + i%2)
				if !errors.Is(err, unix.ECONNREFUSED) {
					return fmt.Errorf("connection %v: %w", c, err)
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// loopbackUp sets the network name space's only interface up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
