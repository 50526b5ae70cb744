package e2e

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// console is a skerry command that runs in a terminal of the test's own.
type console struct {
	d      *dev
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

// newConsole starts skerry with the arguments in a terminal of 30 x 100.
func (d *dev) newConsole(args ...string) *console {
	d.t.Helper()
	c := &console{d: d}
	c.openTerminal()
	c.cmd = exec.Command(filepath.Join(binDir, "skerry"), args...)
	c.cmd.Env = append(d.env(), "TERM=vt100")
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = c.slave, c.slave, c.slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go c.read()
	d.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.slave.Close()
		_ = c.master.Close()
		if d.t.Failed() {
			d.t.Logf("the terminal of skerry %s:\n%q", strings.Join(args, " "), c.text())
		}
	})
	return c
}

func (c *console) openTerminal() {
	c.d.t.Helper()
	var err error
	if c.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		c.d.t.Fatal(err)
	}
	fd := int(c.master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		c.d.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		c.d.t.Fatal(err)
	}
	if c.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		c.d.t.Fatal(err)
	}
	c.resize(30, 100)
}

func (c *console) resize(rows, cols uint16) {
	c.d.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		c.d.t.Fatal(err)
	}
}

func (c *console) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.master.Read(buf)
		c.mu.Lock()
		c.out.Write(buf[:n])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

func (c *console) write(keys string) {
	c.d.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.d.t.Fatal(err)
	}
}

func (c *console) await(text string) {
	c.d.t.Helper()
	c.d.eventually(fmt.Sprintf("%q on the terminal", text), func() bool { return strings.Contains(c.text(), text) })
}

// end waits for the command's end, after which the terminal must be as before.
func (c *console) end() int {
	c.d.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			c.d.t.Fatal(err)
		}
	case <-time.After(60 * time.Second):
		c.d.t.Fatalf("the command does not end: %q", c.text())
	}
	mode, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil || mode.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != unix.ICANON|unix.ECHO|unix.ISIG {
		c.d.t.Errorf("the terminal was left raw: %+v, %v", mode, err)
	}
	return c.cmd.ProcessState.ExitCode()
}

var idOnTerminal = regexp.MustCompile(`ex_[0-9a-z]+`)

// A person at a terminal: a shell with job control, interrupts, a new size, and
// both daemons killed in the middle; each key arrives once.
func TestI2TerminalSurvivesKill9(t *testing.T) {
	d := newDevWith(t, []string{"--listen", freePort(t)})
	c := d.newConsole("sh", "-it")
	c.await("skerry:/workspace$ ")
	c.write("tty; stty size; echo $TERM\r")
	c.await("/dev/pts/0\r\n30 100\r\nvt100\r\n")
	c.write("n=0; echo be''gun\r")
	c.await("begun")
	d.kill()
	// Typed while nobody is there to take it.
	c.write("n=$((n+1)); echo n=''$n\r")
	d.start()
	c.await("n=1\r\n")
	c.write("for i in $(seq 3); do echo line''$i; done\r")
	c.await("line1\r\nline2\r\nline3\r\n")
	c.resize(41, 97)
	c.d.eventually("the new size", func() bool {
		c.write("stty size\r")
		return strings.Contains(c.text(), "41 97\r\n")
	})
	c.write("echo sle''eping; sleep 100\r")
	c.await("sleeping\r\n")
	c.write("\x03")
	c.await("^C")
	c.write("exit 7\r")
	if code := c.end(); code != 7 {
		t.Errorf("exit code %d, want the shell's 7", code)
	}
	for _, once := range []string{"begun\r\n", "n=1\r\n", "line1\r\nline2\r\nline3\r\n"} {
		if n := strings.Count(c.text(), once); n != 1 {
			t.Errorf("%q is on the terminal %d times", once, n)
		}
	}
}

// Leaving and coming back, and two at once.
func TestDetachAndAttach(t *testing.T) {
	d := newDev(t)
	first := d.newConsole("sh", "-it", "--detach-keys", "ctrl-p,ctrl-q")
	first.await("skerry:/workspace$ ")
	first.write("PS1='> '; echo re''ady\r")
	first.await("ready\r\n")
	first.write("\x10\x11")
	if code := first.end(); code != 0 {
		t.Errorf("detaching exits with %d", code)
	}
	first.await("attach again with: skerry exec attach ex_")
	id := idOnTerminal.FindString(first.text())
	if e := d.admin().get(t, id); e.State != "running" || !e.Terminal || !e.Interactive || e.InputAccepted == 0 {
		t.Errorf("record %v", e)
	}
	one, two := d.newConsole("exec", "attach", "--from-start", id), d.newConsole("exec", "attach", id)
	one.await("ready\r\n")
	one.write("echo from''one\r")
	one.await("fromone\r\n")
	two.write("echo from''two\r")
	one.await("fromtwo\r\n")
	two.await("fromtwo\r\n")
	one.write("echo again''one\r")
	two.await("againone\r\n")
	looker := d.newConsole("exec", "attach", "--no-stdin", "--from-start", id)
	looker.await("againone\r\n")
	looker.write("echo not''this\r\x03")
	if code := looker.end(); code != 0 {
		t.Errorf("looking ends with %d", code)
	}
	two.write("exit 5\r")
	for _, c := range []*console{one, two} {
		if code := c.end(); code != 5 {
			t.Errorf("exit code %d, want 5", code)
		}
	}
	if strings.Contains(one.text(), "notthis") {
		t.Error("a client without input has typed")
	}
	if strings.Contains(two.text(), "ready") {
		t.Error("what came before is shown without being asked for")
	}
}

func TestConsoleEndsBySignal(t *testing.T) {
	d := newDev(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		c := d.newConsole("sh", "-it")
		c.await("skerry:/workspace$ ")
		_ = c.cmd.Process.Signal(sig)
		if code := c.end(); code != 125 {
			t.Errorf("%s: exit code %d: %q", sig, code, c.text())
		}
		c.await("attach again with: skerry exec attach ex_")
		id := idOnTerminal.FindString(c.text()[strings.Index(c.text(), "attach"):])
		d.cancel(d.admin(), id)
	}
}

// Input of any length goes through a pipe, over a crash of the daemons.
func TestI2StreamedInputSurvivesKill9(t *testing.T) {
	d := newDevWith(t, []string{"--listen", freePort(t)})
	cmd := exec.Command(filepath.Join(binDir, "skerry"), "sh", "-i", "sha256sum")
	cmd.Env = d.env()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	data := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for i := range 160 {
		data[i] = byte(i)
		hash.Write(data)
		if _, err := stdin.Write(data); err != nil {
			t.Fatal(err)
		}
		if i == 40 || i == 90 {
			d.kill()
			d.start()
		}
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x  -\n", hash.Sum(nil)); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// The rules of the calls, over plain JSON.
func TestInteractiveCalls(t *testing.T) {
	d := newDev(t)
	const service = "/skerry.v1.ExecutionService/"
	c, token := d.agent("typist")
	_, other := d.agent("other")
	plain := c.start(t, "sleep 300", nil)
	for _, tc := range []struct {
		name, call, body string
		status           int
		contains         string
	}{
		{"not interactive", "WriteInput", fmt.Sprintf(`{"executionId":%q,"data":"eA=="}`, plain.Id), 400, "NOT_INTERACTIVE"},
		{"no terminal", "ResizeTerminal", fmt.Sprintf(`{"executionId":%q,"rows":1,"cols":1}`, plain.Id), 400, "NOT_INTERACTIVE"},
		{"no rows", "ResizeTerminal", fmt.Sprintf(`{"executionId":%q,"cols":1}`, plain.Id), 400, `"rows"`},
		{"many columns", "ResizeTerminal", fmt.Sprintf(`{"executionId":%q,"rows":1,"cols":1001}`, plain.Id), 429, `"cols"`},
		{"much data", "WriteInput", fmt.Sprintf(`{"executionId":%q,"data":%q}`, plain.Id, strings.Repeat("AAAA", 100000)), 429, "262144 bytes"},
		{"bad writer", "WriteInput", fmt.Sprintf(`{"executionId":%q,"writer":"a b"}`, plain.Id), 400, `"writer"`},
		{"stdin twice", "RunShell", `{"command":"cat","options":{"stdin":"eA==","interactive":{"stdin":true}}}`, 400, "options.stdin"},
		{"neither", "RunShell", `{"command":"cat","options":{"interactive":{}}}`, 400, "options.interactive"},
		{"wide", "RunShell", `{"command":"cat","options":{"interactive":{"terminal":{"cols":1001}}}}`, 429, "options.interactive.terminal.cols"},
		{"bad TERM", "RunShell", `{"command":"cat","options":{"interactive":{"terminal":{"term":"a/b"}}}}`, 400, "options.interactive.terminal.term"},
		{"forward as JSON", "PortForward", fmt.Sprintf(`{"executionId":%q,"port":80}`, plain.Id), 501, "UNSUPPORTED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := d.post(service+tc.call, token, tc.body)
			if status != tc.status || !strings.Contains(body, tc.contains) {
				t.Errorf("%d %.600s; want %d with %s", status, body, tc.status, tc.contains)
			}
		})
	}
	d.cancel(c, plain.Id)
	e := c.startInteractive(t, "cat", &skerryv1.Interactive{Stdin: true})
	if status, body := d.post(service+"WriteInput", other, fmt.Sprintf(`{"executionId":%q,"data":"eA=="}`, e.Id)); status != 404 {
		t.Errorf("another agent's: %d %s", status, body)
	}
	write := func(writer string, offset uint64, data string, end bool) (*skerryv1.WriteInputResponse, error) {
		res, err := c.ex.WriteInput(t.Context(), connect.NewRequest(&skerryv1.WriteInputRequest{ExecutionId: e.Id, Offset: offset, Data: []byte(data), Close: end, Writer: writer}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	for range 2 {
		if r, err := write("a", 0, "hello ", false); err != nil || r.Accepted != 6 || r.Written != 6 || r.Closed {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if _, err := write("b", 0, "HELLO ", false); problem.Of(err).GetReason() != problem.InputConflict || problem.Of(err).GetExpected() != "6" {
		t.Errorf("another writer: %v", err)
	}
	if _, err := write("a", 9, "x", false); problem.Of(err).GetReason() != problem.InvalidArgument || problem.Of(err).GetExpected() != "6" {
		t.Errorf("a gap: %v", err)
	}
	large := strings.Repeat("0123456789abcdef", 256<<10/16)
	if r, err := write("a", 6, large, true); err != nil || int(r.Written) != len(large) || !r.Closed {
		t.Fatalf("%v, %v", r, err)
	}
	end := c.wait(t, e.Id)
	wantState(t, end, "completed", "exited")
	if got := c.log(t, e.Id, ""); got != "hello "+large || end.InputAccepted != uint64(len(got)) {
		t.Errorf("%d bytes came back; the record says %d", len(got), end.InputAccepted)
	}
	if r, err := write("a", end.InputAccepted, "late", false); err != nil || !r.Closed || r.Written != 0 {
		t.Errorf("after the end: %v, %v", r, err)
	}
}

func (d *dev) cancel(c *client, id string) {
	d.t.Helper()
	_, err := c.ex.CancelExecution(d.t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: id, WaitMs: ms(20 * time.Second)}))
	if err != nil {
		d.t.Fatal(err)
	}
}

func (c *client) startInteractive(t testing.TB, command string, i *skerryv1.Interactive) *skerryv1.Execution {
	t.Helper()
	return c.start(t, command, &skerryv1.RunOptions{Interactive: i})
}
