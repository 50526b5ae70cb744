package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (d *dev) post(path, token, body string) (int, string) {
	d.t.Helper()
	req, err := http.NewRequest(http.MethodPost, d.ready.Endpoint+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestHTTPStatus(t *testing.T) {
	d := newDev(t)
	e := d.admin().sh(t, "echo secret")
	_, other := d.agent("other")
	const run, get = "/skerry.v1.ExecutionService/RunShell", "/skerry.v1.ExecutionService/GetExecution"
	for _, c := range []struct {
		name, path, token, body string
		status                  int
		contains                string
	}{
		{"works", run, d.ready.Token, `{"command":"echo hi"}`, 200, `"exitCode":0`},
		{"no token", run, "", `{"command":"true"}`, 401, "UNAUTHENTICATED"},
		{"wrong token", run, "sk_wrong", `{"command":"true"}`, 401, "UNAUTHENTICATED"},
		{"wrong token, malformed", run, "sk_wrong", `{`, 401, "UNAUTHENTICATED"},
		{"malformed", run, d.ready.Token, `{"command":`, 400, "invalid_argument"},
		{"unknown field", run, d.ready.Token, `{"comand":"true"}`, 400, "comand"},
		{"wrong type", run, d.ready.Token, `{"command":7}`, 400, "command"},
		{"nothing to run", run, d.ready.Token, `{}`, 400, "command"},
		{"another agent's execution", get, other, fmt.Sprintf(`{"executionId":%q}`, e.Id), 404, "NOT_FOUND"},
		{"no such execution", get, other, fmt.Sprintf(`{"executionId":%q}`, e.Id[:len(e.Id)-4]+"0000"), 404, "NOT_FOUND"},
		{"no id at all", get, other, `{"executionId":"../../etc"}`, 404, "NOT_FOUND"},
		{"oversize", run, d.ready.Token, `{"command":"` + strings.Repeat("x", 17<<20) + `"}`, 429, "LIMIT_EXCEEDED"},
		{"long command", run, d.ready.Token, `{"command":"` + strings.Repeat("x", 20001) + `"}`, 429, "LIMIT_EXCEEDED"},
		{"agent on an admin call", "/skerry.v1.JoinService/ListJoinTokens", other, `{}`, 403, "PERMISSION_DENIED"},
		{"no such call", "/skerry.v1.ExecutionService/Nothing", d.ready.Token, `{}`, 501, ""},
		{"the runner's own call", "/skerry.v1.RunnerControlService/Attach", d.ready.Token, `{}`, 501, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := d.post(c.path, c.token, c.body)
			// Details are base64 protobuf in Connect's JSON with a debug form beside.
			if status != c.status || !strings.Contains(body, c.contains) {
				t.Errorf("%d %.400s; want %d with %q", status, body, c.status, c.contains)
			}
			if strings.Contains(body, "secret") {
				t.Errorf("the answer leaks: %s", body)
			}
		})
	}
	if got := d.admin().sh(t, "echo still here"); got.Stdout.Text != "still here\n" {
		t.Error("the daemon does not work any more")
	}
}

// The answers to "not yours" and "does not exist" are the same.
func TestNoExistenceLeak(t *testing.T) {
	d := newDev(t)
	mine := d.admin().sh(t, "true")
	c, token := d.agent("other")
	fake := mine.Id[:len(mine.Id)-6] + "000000"
	for _, path := range []string{"GetExecution", "ReadExecutionLogs", "CancelExecution"} {
		_, real := d.post("/skerry.v1.ExecutionService/"+path, token, fmt.Sprintf(`{"executionId":%q}`, mine.Id))
		_, made := d.post("/skerry.v1.ExecutionService/"+path, token, fmt.Sprintf(`{"executionId":%q}`, fake))
		if strings.ReplaceAll(real, mine.Id, "ID") != strings.ReplaceAll(made, fake, "ID") {
			t.Errorf("%s tells the two apart:\n%s\n%s", path, real, made)
		}
	}
	_, err := c.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Workspace: &skerryv1.WorkspaceSelector{Id: mine.Workspace}}))
	if problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("another agent's workspace: %v", err)
	}
	_, err = c.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Snapshot: mine.Snapshot.Digest}))
	if problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("another agent's snapshot: %v", err)
	}
	list, err := c.ex.ListExecutions(t.Context(), connect.NewRequest(&skerryv1.ListExecutionsRequest{}))
	if err != nil || len(list.Msg.Executions) != 0 {
		t.Errorf("another agent's list: %v %v", list, err)
	}
}

// I7: agents on one runner see nothing of each other.
func TestI7AgentsAreApart(t *testing.T) {
	d := newDev(t)
	a, _ := d.agent("alice")
	b, _ := d.agent("bob")
	first := a.sh(t, "echo alices > alices-own-file; chmod 644 alices-own-file")
	wantState(t, first, "completed", "exited")
	long := a.start(t, "echo up; sleep 300", nil)
	d.eventually("alice runs", func() bool { return a.log(t, long.Id, "") == "up\n" })
	e := b.sh(t, `ls -A /workspace | wc -l; ls /proc | grep -c '^[0-9]' || true; (find / -name alices-own-file -not -path '/proc/*' 2>/dev/null || true) | wc -l; (ls /root /var/lib /tmp 2>/dev/null | grep -v '^/' || true) | grep -c . || true`)
	wantState(t, e, "completed", "exited")
	lines := strings.Fields(e.Stdout.Text)
	if len(lines) != 4 || lines[0] != "0" || lines[2] != "0" || lines[3] != "0" || len(lines[1]) > 1 {
		t.Errorf("bob sees: %q", e.Stdout.Text)
	}
	if _, err := a.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: long.Id, WaitMs: ms(20 * time.Second)})); err != nil {
		t.Fatal(err)
	}
}

func TestRevokedTokenIsUselessAtOnce(t *testing.T) {
	d := newDev(t)
	res, err := d.admin().tok.CreateToken(t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "carol"}))
	if err != nil {
		t.Fatal(err)
	}
	c := d.client(res.Msg.Secret)
	c.sh(t, "true")
	if _, err := d.admin().tok.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: res.Msg.Token.Id})); err != nil {
		t.Fatal(err)
	}
	_, err = c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true"}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Fatalf("revoked: %v", err)
	}
	// Revocation is durable.
	d.kill()
	d.start()
	_, err = d.client(res.Msg.Secret).ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true"}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Fatalf("revoked, after a restart: %v", err)
	}
}

func TestMetricsAndHealth(t *testing.T) {
	d := newDev(t)
	d.admin().sh(t, "true")
	base := strings.TrimSuffix(d.ready.MetricsURL, "/metrics")
	for path, want := range map[string]string{"/metrics": `skerry_runner_executions_total{state="completed",verdict="exited"} 1`,
		"/healthz": "ok", "/readyz": "ready"} {
		res, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d, lacks %q", path, res.StatusCode, want)
		}
		if path == "/metrics" && (strings.Contains(string(b), "ex_0") || strings.Contains(string(b), "ws_0")) {
			t.Error("an id is a label")
		}
	}
}
