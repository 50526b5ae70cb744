// Package e2e tests the built programs as users run them: skerry dev with real
// sandboxes, called over its real API, killed and started again.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
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

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

var binDir string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain uses the programs in SKERRY_BIN, or builds them.
func testMain(m *testing.M) int {
	if _, err := exec.LookPath("bwrap"); err != nil {
		fmt.Println("e2e: bubblewrap is not installed; run make setup")
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" {
			return 1
		}
		return 0
	}
	if binDir = os.Getenv("SKERRY_BIN"); binDir != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "skerry-e2e-bin-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	for _, name := range []string{"skerry", "runnerd", "coordinator", "runnerd-shim"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Printf("build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}

// dev is one skerry dev with its data directory.
type dev struct {
	t     testing.TB
	dir   string
	extra []string // environment of the daemon
	args  []string // more of its arguments
	cmd   *exec.Cmd
	log   output
	ready struct {
		Endpoint, Token, MetricsURL string
		PID                         int
	}
}

// newDev starts skerry dev. Its data lies below a directory that sandbox users
// cannot enter, as below /root.
func newDev(t testing.TB, env ...string) *dev {
	t.Helper()
	return newDevWith(t, nil, env...)
}

func newDevWith(t testing.TB, args []string, env ...string) *dev {
	t.Helper()
	d := &dev{t: t, args: args, extra: env, dir: filepath.Join(t.TempDir(), "private")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("skerry dev said:\n%s", d.log.String())
		}
	})
	d.start()
	return d
}

func (d *dev) env() []string {
	return append(os.Environ(), "SKERRY_CONTEXT="+filepath.Join(d.dir, "context.json"), "SKERRY_ENDPOINT=", "SKERRY_TOKEN=")
}

func (d *dev) start() {
	d.t.Helper()
	file := filepath.Join(d.dir, "ready.json")
	_ = os.Remove(file)
	d.cmd = exec.Command(filepath.Join(binDir, "skerry"), "dev", "--data", filepath.Join(d.dir, "data"), "--listen", "127.0.0.1:0", "--ready-file", file)
	d.cmd.Args = append(d.cmd.Args, d.args...)
	d.cmd.Env = append(d.env(), d.extra...)
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.eventually("skerry dev is ready", func() bool {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		if err == nil {
			err = json.Unmarshal(b, &d.ready)
		}
		if err != nil {
			d.t.Fatal(err)
		}
		return true
	})
}

// output is what a daemon has said so far; it is read while more comes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// said waits for a match in the daemon's log, which may come after what it tells of.
func (d *dev) said(pattern string) (match []string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	d.eventually("the log has "+pattern, func() bool {
		match = re.FindStringSubmatch(d.log.String())
		return match != nil
	})
	return match
}

// kill ends the daemon as a crash would.
func (d *dev) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	d.cmd = nil
}

// stop ends it in order.
func (d *dev) stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		d.t.Fatalf("skerry dev: %v\n%s", err, d.log.String())
	}
	d.cmd = nil
}

// eventually waits for something that no event tells of from outside.
func (d *dev) eventually(what string, ok func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	d.t.Fatalf("did not come: %s\n%s", what, d.log.String())
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// client calls as the owner of a token.
type client struct {
	ex    rpc.ExecutionServiceClient
	files rpc.FileServiceClient
	ws    rpc.WorkspaceServiceClient
	tok   rpc.TokenServiceClient
	run   rpc.RunnerServiceClient
}

func (d *dev) client(token string) *client {
	h := &http.Client{Transport: bearer(token)}
	return &client{ex: rpc.NewExecutionServiceClient(h, d.ready.Endpoint), files: rpc.NewFileServiceClient(h, d.ready.Endpoint),
		ws: rpc.NewWorkspaceServiceClient(h, d.ready.Endpoint), tok: rpc.NewTokenServiceClient(h, d.ready.Endpoint),
		run: rpc.NewRunnerServiceClient(h, d.ready.Endpoint)}
}

func (d *dev) admin() *client { return d.client(d.ready.Token) }

// agent makes a new agent and calls as it.
func (d *dev) agent(name string) (*client, string) {
	d.t.Helper()
	res, err := d.admin().tok.CreateToken(context.Background(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: name}))
	if err != nil {
		d.t.Fatal(err)
	}
	return d.client(res.Msg.Secret), res.Msg.Secret
}

func ms(d time.Duration) *uint32 { v := uint32(d.Milliseconds()); return &v }

// sh runs a command and waits for its end.
func (c *client) sh(t testing.TB, command string) *skerryv1.Execution {
	t.Helper()
	return c.wait(t, c.start(t, command, nil).Id)
}

// start runs a command without waiting.
func (c *client) start(t testing.TB, command string, o *skerryv1.RunOptions) *skerryv1.Execution {
	t.Helper()
	if o == nil {
		o = &skerryv1.RunOptions{}
	}
	o.Background = true
	res, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: command, Options: o}))
	if err != nil {
		t.Fatalf("run %q: %v", command, err)
	}
	return res.Msg.Execution
}

func (c *client) get(t testing.TB, id string) *skerryv1.Execution {
	t.Helper()
	res, err := c.ex.GetExecution(t.Context(), connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id}))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.Execution
}

func (c *client) wait(t testing.TB, id string) *skerryv1.Execution {
	t.Helper()
	for range 6 {
		res, err := c.ex.GetExecution(t.Context(), connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id, WaitMs: ms(20 * time.Second)}))
		if err != nil {
			t.Fatal(err)
		}
		if skerryv1.Terminal(res.Msg.Execution.State) {
			return res.Msg.Execution
		}
	}
	t.Fatalf("execution %s does not end", id)
	return nil
}

// log reads the whole output so far of one stream, or of both.
func (c *client) log(t testing.TB, id, stream string) string {
	t.Helper()
	var out strings.Builder
	for cursor := uint64(0); ; {
		res, err := c.ex.ReadExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.ReadExecutionLogsRequest{ExecutionId: id, Cursor: cursor, Stream: stream}))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.Msg.Records {
			out.Write(r.Data)
		}
		if res.Msg.NextCursor == cursor {
			return out.String()
		}
		cursor = res.Msg.NextCursor
	}
}

func (c *client) write(t testing.TB, path, text string) {
	t.Helper()
	_, err := c.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Path: path, IfExists: "overwrite",
		Content: &skerryv1.WriteFileRequest_Text{Text: text}}))
	if err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

func (c *client) read(t testing.TB, path string) string {
	t.Helper()
	res, err := c.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: path}))
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return res.Msg.Text
}

func wantState(t testing.TB, e *skerryv1.Execution, state, kind string) {
	t.Helper()
	if e.State != state || e.GetVerdict().GetKind() != kind {
		t.Fatalf("execution is %s, verdict %v; want %s, %s\nstdout: %s\nstderr: %s", e.State, e.Verdict, state, kind, e.Stdout.GetText(), e.Stderr.GetText())
	}
}
