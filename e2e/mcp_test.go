package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpSession is a client of the real skerry mcp over its standard input and output.
type mcpSession struct {
	t *testing.T
	*sdk.ClientSession
}

func (d *dev) mcp(t *testing.T, env ...string) mcpSession {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "skerry"), "mcp")
	cmd.Env = append(d.env(), env...)
	s, err := sdk.NewClient(&sdk.Implementation{Name: "e2e", Version: "1"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("skerry mcp: %v", err)
		}
	})
	return mcpSession{t, s}
}

// tool calls a tool and gives its text blocks and its JSON.
func (s mcpSession) tool(name string, args map[string]any) (string, map[string]any, bool) {
	s.t.Helper()
	res, err := s.CallTool(s.t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	var text strings.Builder
	for _, c := range res.Content {
		text.WriteString(c.(*sdk.TextContent).Text + "\n")
	}
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		s.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		s.t.Fatalf("%s gave %s", name, b)
	}
	return text.String(), out, res.IsError
}

func (s mcpSession) good(name string, args map[string]any) (string, map[string]any) {
	s.t.Helper()
	text, out, failed := s.tool(name, args)
	if failed {
		s.t.Fatalf("%s %v: %s", name, args, text)
	}
	return text, out
}

func (s mcpSession) wantReason(reason, field, name string, args map[string]any) {
	s.t.Helper()
	text, out, failed := s.tool(name, args)
	e, _ := out["error"].(map[string]any)
	if !failed || e["reason"] != reason || (field != "" && e["field"] != field) || !strings.HasPrefix(text, reason) {
		s.t.Errorf("%s %.200v: %.500s", name, args, text)
	}
}

func TestMCPOverStdio(t *testing.T) {
	d := newDev(t)
	s := d.mcp(t)
	text, e := s.good("run_shell", map[string]any{"command": "echo out $1; echo err >&2; echo made > made.txt; exit 3", "arguments": []string{"arg"}})
	if e["state"] != "failed" || !strings.Contains(text, "exited with code 3") || !strings.Contains(text, "out arg\n") || !strings.Contains(text, "err\n") || !strings.Contains(text, "A made.txt\n") {
		t.Errorf("run_shell: %s", text)
	}
	id := e["id"].(string)
	if _, again := s.good("execution_status", map[string]any{"execution_id": id}); again["id"] != id || again["state"] != "failed" {
		t.Errorf("status %v", again)
	}
	if text, _ := s.good("execution_status", map[string]any{"state": "failed"}); !strings.Contains(text, id) {
		t.Errorf("list: %s", text)
	}
	_, log := s.good("execution_logs", map[string]any{"execution_id": id, "stream": "stderr"})
	if log["text"] != "err\n" || log["end"] != true {
		t.Errorf("logs %v", log)
	}
	if text, _ := s.good("run_command", map[string]any{"program": "printf", "args": []string{"%s", "a b"}}); !strings.Contains(text, "a b\n") {
		t.Errorf("run_command: %s", text)
	}
	s.good("write_file", map[string]any{"path": "in/é.txt", "content": "one\ntwo\nthree\n"})
	s.wantReason("ALREADY_EXISTS", "path", "write_file", map[string]any{"path": "in/é.txt", "content": "x"})
	s.good("write_file", map[string]any{"path": "in/é.txt", "content": "four\n", "if_exists": "append"})
	text, ls := s.good("list_files", map[string]any{"recursive": true, "glob": "**/*.txt", "limit": 1})
	if files := ls["files"].([]any); len(files) != 1 || ls["nextPageToken"] == "" {
		t.Errorf("list_files: %s", text)
	}
	text, _ = s.good("list_files", map[string]any{"recursive": true, "glob": "**/*.txt", "limit": 500, "cursor": ls["nextPageToken"]})
	if !strings.Contains(text, "made.txt") || strings.Contains(text, "é.txt") {
		t.Errorf("second page: %s", text)
	}
	text, page := s.good("read_file", map[string]any{"path": "in/é.txt", "offset": 2, "limit": 2})
	if page["text"] != "two\nthree\n" || fmt.Sprint(page["nextOffset"]) != "4" {
		t.Errorf("read_file: %s", text)
	}
	s.good("run_shell", map[string]any{"command": "head -c 100 /dev/zero > blob"})
	if text, page = s.good("read_file", map[string]any{"path": "blob"}); page["binary"] != true || page["text"] != "" || !strings.Contains(text, "sha256:") {
		t.Errorf("binary: %s", text)
	}
}

func TestMCPFollowsAndCancels(t *testing.T) {
	d := newDev(t)
	s := d.mcp(t)
	args := map[string]any{"command": "trap '' TERM; printf '\\342\\202'; sleep 0.3; printf '\\254\\n'; sleep 300 & sleep 300", "background": true, "idempotency_key": "once"}
	_, e := s.good("run_shell", args)
	id := e["id"].(string)
	if _, again := s.good("run_shell", args); again["id"] != id {
		t.Errorf("the same key ran twice: %v and %v", id, again["id"])
	}
	var got string
	cursor := any(0)
	d.eventually("the character is whole", func() bool {
		_, log := s.good("execution_logs", map[string]any{"execution_id": id, "cursor": cursor})
		got, cursor = got+log["text"].(string), log["nextCursor"]
		return strings.HasSuffix(got, "\n")
	})
	if got != "€\n" {
		t.Errorf("log %q", got)
	}
	if text, e := s.good("execution_status", map[string]any{"execution_id": id, "wait_ms": 1}); e["state"] != "running" || !strings.Contains(text, "it goes on") {
		t.Errorf("status: %s", text)
	}
	if text, e := s.good("execution_cancel", map[string]any{"execution_id": id}); e["state"] != "cancelled" {
		t.Errorf("cancel: %s", text)
	}
	text, _ := s.good("run_shell", map[string]any{"command": "yes $(seq 100 | tr '\\n' '-') | head -c 3000000", "wait_ms": 30000})
	if len(text) > 51<<10 || !strings.Contains(text, "bytes omitted; read them with execution_logs") {
		t.Errorf("a result of %d bytes", len(text))
	}
}

func TestMCPErrors(t *testing.T) {
	d := newDev(t)
	s := d.mcp(t)
	s.wantReason("UNSUPPORTED", "npu", "run_shell", map[string]any{"command": "true", "npu": 1})
	s.wantReason("UNSUPPORTED", "environment_id", "run_command", map[string]any{"program": "true", "environment_id": "env_1"})
	s.wantReason("UNSUPPORTED", "network", "run_shell", map[string]any{"command": "true", "network": "internet"})
	s.wantReason("INVALID_ARGUMENT", "shell", "run_shell", map[string]any{"shell": "true"})
	s.wantReason("INVALID_ARGUMENT", "command", "run_shell", map[string]any{"command": "true", "scriptPath": "a"})
	s.wantReason("LIMIT_EXCEEDED", "arguments[0]", "run_shell", map[string]any{"command": "true", "arguments": []string{strings.Repeat("x", 513)}})
	s.wantReason("LIMIT_EXCEEDED", "timeout_s", "run_shell", map[string]any{"command": "true", "timeout_s": 1 << 31})
	s.wantReason("NO_RUNNER", "runner_id", "run_shell", map[string]any{"command": "true", "runner_id": "nowhere"})
	s.wantReason("PATH_OUTSIDE_WORKSPACE", "path", "read_file", map[string]any{"path": "../../etc/passwd"})
	s.wantReason("PATH_SENSITIVE", "path", "read_file", map[string]any{"path": ".ssh/id_rsa"})
	s.wantReason("PATH_OUTSIDE_WORKSPACE", "path", "write_file", map[string]any{"path": "/etc/passwd", "content": "x"})
	s.wantReason("INVALID_ARGUMENT", "cursor", "list_files", map[string]any{"cursor": "forged"})

	_, e := s.good("run_shell", map[string]any{"command": "true"})
	_, other := d.agent("other")
	o := d.mcp(t, "SKERRY_TOKEN="+other, "SKERRY_ENDPOINT="+d.ready.Endpoint)
	for _, tool := range []string{"execution_status", "execution_logs", "execution_cancel"} {
		o.wantReason("NOT_FOUND", "execution_id", tool, map[string]any{"execution_id": e["id"]})
	}
	bad := d.mcp(t, "SKERRY_TOKEN=not-a-token-at-all", "SKERRY_ENDPOINT="+d.ready.Endpoint)
	bad.wantReason("UNAUTHENTICATED", "", "list_files", nil)
	if text, _, _ := bad.tool("list_files", nil); strings.Contains(text, "not-a-token") {
		t.Errorf("the token shows: %s", text)
	}

	d.kill()
	s.wantReason("OUTCOME_UNKNOWN", "", "run_shell", map[string]any{"command": "true"})
	s.wantReason("UNAVAILABLE", "", "list_files", nil)
}

func TestMCPNeedsAToken(t *testing.T) {
	d := newDev(t)
	cmd := exec.Command(filepath.Join(binDir, "skerry"), "mcp")
	cmd.Env = append(d.env(), "SKERRY_CONTEXT="+filepath.Join(d.dir, "none"))
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "SKERRY_TOKEN") {
		t.Errorf("exit %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}
