package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// TestMain lets the test binary be the process itself.
func TestMain(m *testing.M) {
	if os.Getenv("SKERRY_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

type process struct {
	cmd    *exec.Cmd
	listen string
	ended  chan error
}

// start runs the process and waits until it serves.
func start(t *testing.T, dir string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "--data-dir", dir, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	cmd.Env = []string{"SKERRY_TEST_MAIN=1"}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &process{cmd: cmd, ended: make(chan error, 1)}
	serving := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := regexp.MustCompile(`msg=serving listen=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				serving <- m[1]
			}
		}
		d.ended <- cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	select {
	case d.listen = <-serving:
	case err := <-d.ended:
		t.Fatalf("process ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("process does not serve")
	}
	return d
}

type admin struct{ token string }

// RoundTrip implements http.RoundTripper.
func (a admin) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Set("Authorization", "Bearer "+a.token)
	return http.DefaultTransport.RoundTrip(req)
}

func TestDaemonLife(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := start(t, dir)
	secret, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + d.listen + "/readyz")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("ready: %v", err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	tokens := func(d *process) int {
		client := rpc.NewTokenServiceClient(&http.Client{Transport: admin{strings.TrimSpace(string(secret))}}, "http://"+d.listen)
		list, err := client.ListTokens(t.Context(), connect.NewRequest(&skerryv1.ListTokensRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Msg.GetTokens())
	}
	if n := tokens(d); n != 1 {
		t.Errorf("%d tokens", n)
	}
	// Killed, then started again: the same token works, no second one is made.
	_ = d.cmd.Process.Kill()
	<-d.ended
	d = start(t, dir)
	if n := tokens(d); n != 1 {
		t.Errorf("%d tokens after kill -9", n)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-d.ended; err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:1\nlog: {level: warn}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		env  []string
		want string // in the output, or in the error after "!"
	}{
		{"version", []string{"version"}, nil, "coordinator dev"},
		{"file", []string{"--config", file, "--print-config"}, nil, "listen: 127.0.0.1:1"},
		{"env over file", []string{"--config", file, "--print-config"}, []string{"SKERRY_COORDINATOR_LISTEN=127.0.0.1:2"}, "listen: 127.0.0.1:2"},
		{"flag over env", []string{"--config", file, "--print-config", "--listen", "127.0.0.1:3"}, []string{"SKERRY_COORDINATOR_LISTEN=127.0.0.1:2"}, "listen: 127.0.0.1:3"},
		{"empty flag", []string{"--config", file, "--print-config", "--metrics-listen", ""}, nil, `metrics_listen: ""`},
		{"no such file", []string{"--config", "/nowhere.yaml"}, nil, "!no such file"},
		{"clear text", []string{"--config", file, "--listen", "0.0.0.0:1"}, nil, "!listen: tokens would cross the network in clear text"},
		{"unknown flag", []string{"--lisen", "x"}, nil, "!unknown flag"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command(tt.env)
			cmd.SetArgs(tt.args)
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := cmd.ExecuteContext(t.Context())
			want, fails := strings.CutPrefix(tt.want, "!")
			if fails != (err != nil) || fails && !strings.Contains(err.Error(), want) || !fails && !strings.Contains(out.String(), want) {
				t.Errorf("error %v, output %s", err, out.String())
			}
		})
	}
}
