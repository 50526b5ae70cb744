package mcp

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestToolsAreTheKnownOnes(t *testing.T) {
	s := newSession(t, &fake{t: t})
	res, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	run := "background cwd environment_id idempotency_key network npu runner_id timeout_s wait_ms"
	want := map[string]string{
		"run_shell":          "arguments background command cwd environment_id idempotency_key network npu runner_id scriptPath timeout_s wait_ms",
		"run_command":        "args " + strings.Replace(run, "runner_id", "program runner_id", 1),
		"execution_status":   "execution_id state wait_ms",
		"execution_logs":     "cursor execution_id stream tail",
		"execution_cancel":   "execution_id",
		"list_files":         "cursor glob limit path recursive",
		"read_file":          "limit offset path",
		"write_file":         "content if_exists path",
		"timer_create":       "after_ms at execution_id message",
		"timer_list":         "",
		"timer_cancel":       "timer_id",
		"workspace_transfer": "conflict idempotency_key mappings operation source source_snapshot target transfer_id wait_ms",
	}
	for _, tool := range res.Tools {
		b, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var schema struct {
			Properties           map[string]struct{ Type, Description string }
			AdditionalProperties *bool
		}
		if err := json.Unmarshal(b, &schema); err != nil {
			t.Fatal(err)
		}
		var names []string
		for name, p := range schema.Properties {
			names = append(names, name)
			if p.Type == "" || p.Description == "" {
				t.Errorf("%s: %s is not described", tool.Name, name)
			}
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want[tool.Name] {
			t.Errorf("%s takes %q, want %q", tool.Name, got, want[tool.Name])
		}
		if schema.AdditionalProperties == nil || *schema.AdditionalProperties {
			t.Errorf("%s: the schema allows unknown parameters", tool.Name)
		}
		reads := !strings.HasPrefix(tool.Name, "run_") && tool.Name != "write_file" && tool.Name != "workspace_transfer" && tool.Name != "execution_cancel" &&
			tool.Name != "timer_create" && tool.Name != "timer_cancel"
		if tool.Description == "" || tool.Annotations.ReadOnlyHint != reads || *tool.Annotations.DestructiveHint == reads {
			t.Errorf("%s: description or annotations %+v", tool.Name, tool.Annotations)
		}
		delete(want, tool.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	s := newSession(t, &fake{t: t}) // nothing of this may reach the API
	long := strings.Repeat("x", 20_001)
	for _, k := range []struct{ tool, args, reason, field, says string }{
		{"run_shell", `{"command":"a","shell":"b"}`, problem.InvalidArgument, "shell", "unknown"},
		{"run_shell", `{"Command":"a"}`, problem.InvalidArgument, "Command", "unknown"},
		{"run_shell", `{"command":"a","script_path":"b"}`, problem.InvalidArgument, "script_path", "scriptPath"},
		{"execution_logs", `{"execution_id":"ex_1","pageToken":"x"}`, problem.InvalidArgument, "pageToken", "unknown"},
		{"run_shell", `{"command":1}`, problem.InvalidArgument, "command", "the number 1"},
		{"run_shell", `{"command":"a","wait_ms":30001}`, problem.LimitExceeded, "wait_ms", "30000"},
		{"run_shell", `{"command":"a","wait_ms":-1}`, problem.InvalidArgument, "wait_ms", "0 to 30000"},
		{"run_shell", `{"command":"a","wait_ms":1.5}`, problem.InvalidArgument, "wait_ms", "integer"},
		{"run_shell", `{"command":"a","wait_ms":1e999999999}`, problem.InvalidArgument, "wait_ms", "integer"},
		{"run_shell", `{"command":"a","wait_ms":99999999999999999999}`, problem.LimitExceeded, "wait_ms", "30000"},
		{"run_shell", `{"command":"a","background":"yes"}`, problem.InvalidArgument, "background", "a string"},
		{"run_shell", `{"command":"a","arguments":"x"}`, problem.InvalidArgument, "arguments", "array"},
		{"run_shell", `{"command":"a","arguments":["x",null]}`, problem.InvalidArgument, "arguments", "array"},
		{"run_shell", `{"command":"` + long + `"}`, problem.LimitExceeded, "command", "20000 characters"},
		{"run_shell", `{"command":"a","environment_id":"env_1"}`, problem.Unsupported, "environment_id", "not supported yet"},
		{"run_shell", `{"command":"a","npu":1}`, problem.Unsupported, "npu", "not supported yet"},
		{"run_command", `{"args":["x"]}`, problem.InvalidArgument, "program", "missing"},
		{"run_command", `{"program":null}`, problem.InvalidArgument, "program", "missing"},
		{"run_command", `{"program":"p","npu":2}`, problem.Unsupported, "npu", "not supported yet"},
		{"run_command", `{"program":"p","arguments":[]}`, problem.InvalidArgument, "arguments", "args"},
		{"execution_status", `{"wait_ms":10}`, problem.InvalidArgument, "wait_ms", "execution_id"},
		{"execution_status", `{"execution_id":"ex_1","state":"running"}`, problem.InvalidArgument, "state", "execution_id"},
		{"execution_status", `{"state":"done"}`, problem.InvalidArgument, "state", "completed"},
		{"execution_logs", `{"execution_id":"ex_1","tail":1,"cursor":1}`, problem.InvalidArgument, "tail", "cursor"},
		{"execution_logs", `{"execution_id":"ex_1","tail":50000}`, problem.LimitExceeded, "tail", "40960"},
		{"execution_logs", `{"execution_id":"ex_1","stream":"both"}`, problem.InvalidArgument, "stream", "stdout"},
		{"execution_logs", `{}`, problem.InvalidArgument, "execution_id", "missing"},
		{"execution_cancel", `{"execution_id":"ex_1","reason":"x"}`, problem.InvalidArgument, "reason", "unknown"},
		{"list_files", `{"limit":501}`, problem.LimitExceeded, "limit", "500"},
		{"list_files", `{"limit":0}`, problem.InvalidArgument, "limit", "1 to 500"},
		{"read_file", `{"path":"a","limit":2001}`, problem.LimitExceeded, "limit", "2000"},
		{"read_file", `{"path":"a","offset":0}`, problem.InvalidArgument, "offset", "1"},
		{"workspace_transfer", `{"operation":"move"}`, problem.InvalidArgument, "operation", "start"},
		{"workspace_transfer", `{"operation":"status"}`, problem.InvalidArgument, "transfer_id", "missing"},
		{"workspace_transfer", `{"operation":"start","mappings":["a"]}`, problem.InvalidArgument, "mappings", "source"},
		{"workspace_transfer", `{"operation":"start","mappings":[{"source":"a"}]}`, problem.InvalidArgument, "mappings[0]", "target"},
		{"workspace_transfer", `{"operation":"start","mappings":[{"source":"a","target":"b","mode":1}]}`, problem.InvalidArgument, "mappings", "target"},
		{"write_file", `{"path":"a"}`, problem.InvalidArgument, "content", "missing"},
		{"write_file", `{"path":"a","content":"b","if_exists":"replace"}`, problem.InvalidArgument, "if_exists", "overwrite"},
		{"write_file", `{"path":"a","content":"` + strings.Repeat("x", maxContent+1) + `"}`, problem.LimitExceeded, "content", "8388608 bytes"},
		{"write_file", `{"path":"a","content":"\ud800"}`, problem.InvalidArgument, "", "Unicode"},
		{"write_file", `{"path":"a","content":"\udc00\ud800"}`, problem.InvalidArgument, "", "Unicode"},
		{"write_file", `[]`, problem.InvalidArgument, "", "object"},
	} {
		t.Run(k.tool+" "+k.args[:min(len(k.args), 60)], func(t *testing.T) {
			a := s.call(k.tool, k.args)
			p := a.problem(t)
			if p.Reason != k.reason || p.Field != k.field || p.Remedy == "" || !strings.Contains(a.text[0], k.says) || !strings.HasPrefix(a.text[0], k.reason+": ") {
				t.Errorf("got %+v\n%s", p, a.text[0])
			}
		})
	}
}

// Clients write the same thing in many ways; models fill in what asks for nothing.
func TestArgumentsAreUnderstood(t *testing.T) {
	var got *skerryv1.ReadExecutionLogsRequest
	f := &fake{t: t, logs: func(r *skerryv1.ReadExecutionLogsRequest) (*skerryv1.ReadExecutionLogsResponse, error) {
		got = r
		return &skerryv1.ReadExecutionLogsResponse{NextCursor: r.Cursor, State: "running"}, nil
	}}
	s := newSession(t, f)
	for _, cursor := range []string{`42`, `42.0`, `4.2e1`, `"42"`} {
		s.good("execution_logs", `{"execution_id":"ex_1","stream":"","tail":null,"cursor":`+cursor+`}`)
		if got.Cursor != 42 || got.TailBytes != nil {
			t.Errorf("cursor %s arrives as %v", cursor, got)
		}
	}
	var shell *skerryv1.WriteFileRequest
	f.write = func(r *skerryv1.WriteFileRequest) (*skerryv1.WriteFileResponse, error) {
		shell = r
		return &skerryv1.WriteFileResponse{File: &skerryv1.FileInfo{Path: r.Path}}, nil
	}
	s.good("write_file", `{"path":"a","content":"\ud83d\ude00 \\ud800 \u00e9"}`)
	if shell.GetText() != "😀 \\ud800 é" || shell.IfExists != "" {
		t.Errorf("content arrives as %q", shell.GetText())
	}
	s.good("write_file", `{"path":"a","content":""}`)
	if _, ok := shell.Content.(*skerryv1.WriteFileRequest_Text); !ok {
		t.Error("empty content does not arrive")
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"command":"\ud800\udc00"}`, `{"wait_ms":1e3,"npu":0}`, `{"arguments":["a"]}`, `{"x":`, "\xff"} {
		f.Add([]byte(s))
	}
	params := runShell(nil).params
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := decode(raw, params)
		if err != nil {
			if describe(err, params).Reason == "" {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if n := get[int64](a, "wait_ms"); n < 0 || n > maxWaitMS {
			t.Errorf("wait_ms %d", n)
		}
		if a.has("npu") && get[int64](a, "npu") != 0 || get[string](a, "environment_id") != "" {
			t.Errorf("accepted what is not supported: %v", a)
		}
	})
}
