package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// apart is a coordinator and runners as processes of their own.
type apart struct {
	*dev
	t     *testing.T
	dir   string
	api   string
	head  *process
	nodes map[string]*process
	ca    *client // as admin
}

func newApart(t *testing.T, more string, names ...string) *apart {
	t.Helper()
	a := &apart{dev: &dev{t: t}, t: t, dir: t.TempDir(), api: freePort(t), nodes: map[string]*process{}}
	if err := os.Chmod(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a.ready.Endpoint = "http://" + a.api
	a.head = &process{t: t, name: "coordinator", args: []string{"--config", writeFile(t, a.dir+"/coordinator.yaml",
		fmt.Sprintf("data_dir: %s/head\nlisten: %s\nmetrics_listen: \"\"\nlog: {level: debug}\n%s", a.dir, a.api, more))}}
	t.Cleanup(a.end)
	a.head.start()
	a.eventually("the admin token", func() bool {
		b, err := os.ReadFile(a.dir + "/head/admin.token")
		a.ready.Token = strings.TrimSpace(string(b))
		return err == nil
	})
	a.ca = a.client(a.ready.Token)
	for _, name := range names {
		a.node(name)
	}
	for _, name := range names {
		a.up(name)
	}
	return a
}

func (a *apart) end() {
	all := []*process{a.head}
	for _, p := range a.nodes {
		all = append(all, p)
	}
	for _, p := range all {
		if p.cmd != nil {
			p.kill()
		}
		if a.t.Failed() {
			a.t.Logf("%s said:\n%.20000s", strings.Join(p.args, " "), p.log.String())
		}
	}
}

// node starts a runner.
func (a *apart) node(name string) {
	a.t.Helper()
	var secret string
	a.eventually("the coordinator answers", func() bool {
		res, err := a.ca.tok.CreateToken(a.t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Role: "runner", Subject: name}))
		if err == nil {
			secret = res.Msg.Secret
		}
		return err == nil
	})
	a.nodes[name] = &process{t: a.t, name: "runnerd", args: []string{"--config", writeFile(a.t, a.dir+"/"+name+".yaml",
		fmt.Sprintf("data_dir: %[1]s/%[2]s\nname: %[2]s\ncoordinators: [http://%[3]s]\ntoken_file: %[4]s\nmetrics_listen: \"\"\nlog: {level: debug}\n", a.dir, name, a.api,
			writeFile(a.t, a.dir+"/"+name+".token", secret)))}}
	a.nodes[name].start()
}

func (a *apart) up(name string) {
	a.t.Helper()
	a.eventually("runner "+name+" is up", func() bool {
		list, err := a.ca.run.ListRunners(a.t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		if err != nil {
			return false
		}
		for _, r := range list.Msg.Runners {
			if r.Name == name && r.State == "up" {
				return true
			}
		}
		return false
	})
}

// mover is an agent's client with what transfers need.
type mover struct {
	*client
	tr rpc.TransferServiceClient
}

func (a *apart) mover(name string) *mover {
	c, secret := a.agent(name)
	return &mover{c, rpc.NewTransferServiceClient(&http.Client{Transport: bearer(secret)}, a.ready.Endpoint)}
}

// on runs a command on a runner and gives its record.
func (m *mover) on(t testing.TB, runner, command string) *skerryv1.Execution {
	t.Helper()
	return m.wait(t, m.start(t, command, &skerryv1.RunOptions{Runner: runner}).Id)
}

// workspace gives the id of the agent's workspace on a runner.
func (m *mover) workspace(t testing.TB, runner string) string {
	t.Helper()
	res, err := m.ws.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range res.Msg.Workspaces {
		if w.Runner == runner {
			return w.Id
		}
	}
	t.Fatalf("no workspace on %s: %v", runner, res.Msg.Workspaces)
	return ""
}

func (m *mover) transfer(t testing.TB, req *skerryv1.StartTransferRequest, mappings ...string) *skerryv1.Transfer {
	t.Helper()
	for _, text := range mappings {
		from, to, _ := strings.Cut(text, ":")
		req.Mappings = append(req.Mappings, &skerryv1.TransferMapping{Source: from, Target: to})
	}
	res, err := m.tr.StartTransfer(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.Transfer
}

// ended waits for the end, over failures of calls, and gives all outcomes.
func (m *mover) ended(t testing.TB, id string) (*skerryv1.Transfer, map[string]*skerryv1.TransferFile) {
	t.Helper()
	var last *skerryv1.Transfer
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("transfer does not end: %v", last)
		}
		res, err := m.tr.GetTransfer(t.Context(), connect.NewRequest(&skerryv1.GetTransferRequest{TransferId: id, WaitMs: 2000, FileLimit: 1}))
		if err != nil {
			continue
		}
		if last = res.Msg.Transfer; skerryv1.TransferEnded(last.State) {
			break
		}
	}
	return last, m.outcomes(t, id)
}

func (m *mover) outcomes(t testing.TB, id string) map[string]*skerryv1.TransferFile {
	t.Helper()
	all := map[string]*skerryv1.TransferFile{}
	token := ""
	for deadline := time.Now().Add(time.Minute); ; {
		res, err := m.tr.GetTransfer(t.Context(), connect.NewRequest(&skerryv1.GetTransferRequest{TransferId: id, FileLimit: 1000, PageToken: token}))
		if err != nil || res.Msg.FilesUnavailable != "" {
			if time.Now().After(deadline) {
				t.Fatalf("files: %v %v", err, res)
			}
			time.Sleep(50 * time.Millisecond)
			continue
		}
		for _, f := range res.Msg.Files {
			if all[f.Path] != nil {
				t.Fatalf("%s has two outcomes", f.Path)
			}
			all[f.Path] = f
		}
		if token = res.Msg.NextPageToken; token == "" {
			return all
		}
	}
}

func TestTransfer(t *testing.T) {
	a := newApart(t, "", "node1", "node2")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", `mkdir -p d/empty d/sub; echo one > d/a; echo two > d/sub/b; chmod 640 d/a; ln -s a d/link; mkfifo d/pipe; echo x > same; echo mine > other; head -c 5000000 /dev/zero > big`), "completed", "exited")
	wantState(t, m.on(t, "node2", `echo x > same; echo theirs > other; ln -s /tmp out; mkdir is-dir`), "completed", "exited")
	from, to := m.workspace(t, "node1"), m.workspace(t, "node2")
	tr := m.transfer(t, &skerryv1.StartTransferRequest{Source: from, Target: to}, "d:got/d", "same:same", "other:other", "big:big", "none:none", "d/a:out/a", "d/a:is-dir", "d/a:.ssh/a")
	end, files := m.ended(t, tr.Id)
	if end.State != "partial" || end.Route != "relay" {
		t.Errorf("ended %v", end)
	}
	want := map[string]string{"got/d": "completed", "got/d/a": "completed", "got/d/empty": "completed", "got/d/link": "completed", "got/d/sub": "completed", "got/d/sub/b": "completed",
		"same": "completed", "big": "completed", "other": problem.FileConflict, "none": problem.NotFound, "out/a": problem.PathOutside, "is-dir": problem.NotAFile, ".ssh/a": problem.PathSensitive}
	for path, state := range want {
		f := files[path]
		got := f.GetState()
		if got == "failed" {
			got = f.GetProblem().GetReason()
		}
		if got != state {
			t.Errorf("%s: %v, want %s", path, f, state)
		}
	}
	if len(files) != len(want) || end.Counts.Completed != 8 || end.Counts.Failed != 5 {
		t.Errorf("%d files, counts %v", len(files), end.Counts)
	}
	e := m.on(t, "node2", `cat got/d/a got/d/link got/d/sub/b other; stat -c %a got/d/a; ls -A got/d/empty; stat -c %s big; test ! -e got/d/pipe; ls /tmp`)
	if e.Stdout.Text != "one\none\ntwo\ntheirs\n640\n5000000\n" {
		t.Errorf("target has %q", e.Stdout.Text)
	}
	// The same key gives the same transfer; overwriting takes what was a conflict.
	req := func() *skerryv1.StartTransferRequest {
		return &skerryv1.StartTransferRequest{Source: from, Target: to, Conflict: "overwrite", IdempotencyKey: "k"}
	}
	first := m.transfer(t, req(), "other:other")
	if again := m.transfer(t, req(), "other:other"); again.Id != first.Id {
		t.Errorf("the key gave %s and %s", first.Id, again.Id)
	}
	if end, _ := m.ended(t, first.Id); end.State != "completed" {
		t.Errorf("overwrite %v", end)
	}
	if got := m.on(t, "node2", "cat other").Stdout.Text; got != "mine\n" {
		t.Errorf("other is %q", got)
	}
	other := r(t, a, "bob", from, to)
	other.strangers(t, first.Id)
	m.hostile(t, from, to)
	hist, err := m.ws.History(t.Context(), connect.NewRequest(&skerryv1.HistoryRequest{Workspace: &skerryv1.WorkspaceSelector{Id: to}}))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, rev := range hist.Msg.Revisions {
		found = found || (rev.SourceKind == "transfer" && rev.Source == tr.Id)
	}
	if !found {
		t.Errorf("no revision of the transfer: %v", hist.Msg.Revisions)
	}
}

// stranger is another agent, and alice's workspaces.
type stranger struct {
	*mover
	from, to string
}

func r(t *testing.T, a *apart, name, from, to string) stranger {
	t.Helper()
	m := a.mover(name)
	wantState(t, m.on(t, "node2", "true"), "completed", "exited")
	return stranger{m, from, to}
}

// strangers: another agent cannot see, start, read or cancel anything.
func (s stranger) strangers(t *testing.T, id string) {
	t.Helper()
	own := s.workspace(t, "node2")
	for name, err := range map[string]error{
		"source": callErr(s.tr.StartTransfer, &skerryv1.StartTransferRequest{Source: s.from, Target: own, Mappings: []*skerryv1.TransferMapping{{Source: "a", Target: "a"}}}),
		"target": callErr(s.tr.StartTransfer, &skerryv1.StartTransferRequest{Source: own, Target: s.to, Mappings: []*skerryv1.TransferMapping{{Source: "a", Target: "a"}}}),
		"get":    callErr(s.tr.GetTransfer, &skerryv1.GetTransferRequest{TransferId: id}),
		"cancel": callErr(s.tr.CancelTransfer, &skerryv1.CancelTransferRequest{TransferId: id}),
	} {
		if p := problem.Of(err); p.GetReason() != problem.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	list, err := s.tr.ListTransfers(t.Context(), connect.NewRequest(&skerryv1.ListTransfersRequest{}))
	if err != nil || len(list.Msg.Transfers) != 0 {
		t.Errorf("a stranger's list: %v %v", list, err)
	}
}

func callErr[Q, S any](call func(context.Context, *connect.Request[Q]) (*connect.Response[S], error), req *Q) error {
	_, err := call(context.Background(), connect.NewRequest(req))
	return err
}

// hostile mappings are refused before anything is done.
func (m *mover) hostile(t *testing.T, from, to string) {
	t.Helper()
	many := make([]string, 51)
	for i := range many {
		many[i] = "a:t" + strconv.Itoa(i)
	}
	for name, tc := range map[string]struct {
		mappings []string
		want     string
	}{
		"dot dot source": {[]string{"../x:a"}, problem.PathOutside}, "dot dot target": {[]string{"a:b/../../x"}, problem.PathOutside},
		"absolute": {[]string{"/etc/passwd:a"}, problem.PathOutside}, "absolute target": {[]string{"a:/etc/x"}, problem.PathOutside},
		"NUL": {[]string{"a\x00:b"}, problem.InvalidArgument}, "none": {nil, problem.InvalidArgument}, "51": {many, problem.LimitExceeded},
		"twice": {[]string{"a:x", "b:./x"}, problem.InvalidArgument}, "inside": {[]string{"a:x", "c:x-y", "b:x/y"}, problem.InvalidArgument},
		"root and more": {[]string{"a:", "b:x"}, problem.InvalidArgument}, "long": {[]string{"a:" + strings.Repeat("n", 256)}, problem.LimitExceeded},
	} {
		req := &skerryv1.StartTransferRequest{Source: from, Target: to}
		for _, text := range tc.mappings {
			s, d, _ := strings.Cut(text, ":")
			req.Mappings = append(req.Mappings, &skerryv1.TransferMapping{Source: s, Target: d})
		}
		if err := callErr(m.tr.StartTransfer, req); problem.Of(err).GetReason() != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

// F50, I3, I4: 10,000 files while source, target and coordinator are killed.
func TestF50TransferSurvivesKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SKERRY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SKERRY_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	files, kills := 10_000, 12
	if testing.Short() {
		files, kills = 2_000, 4
	}
	a := newApart(t, "", "node1", "node2")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", fmt.Sprintf(`mkdir -p d; cd d; for i in $(seq %d); do x=$((i %% 97)); test -d $x || mkdir $x; echo content $i > $x/$i; done; head -c 30000000 /dev/urandom > big; sha256sum */* big > ../sums`, files)), "completed", "exited")
	wantState(t, m.on(t, "node2", "echo keep > keep"), "completed", "exited")
	tr := m.transfer(t, &skerryv1.StartTransferRequest{Source: m.workspace(t, "node1"), Target: m.workspace(t, "node2")}, "d:in/d", "sums:sums")
	victims := []*process{a.head, a.nodes["node1"], a.nodes["node2"], a.nodes["node2"]}
	for range kills {
		time.Sleep(time.Duration(20+rnd.IntN(500)) * time.Millisecond)
		v := victims[rnd.IntN(len(victims))]
		v.kill()
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		v.start()
	}
	end, got := m.ended(t, tr.Id)
	if end.State != "completed" {
		t.Fatalf("ended %v", end)
	}
	n := 0
	for path, f := range got {
		if f.State != "completed" {
			t.Errorf("%s: %v", path, f)
		}
		if f.Type == "file" {
			n++
		}
	}
	if n != files+2 || int(end.Counts.Completed) != len(got) {
		t.Errorf("%d files, counts %v, %d outcomes", n, end.Counts, len(got))
	}
	a.up("node2")
	e := m.on(t, "node2", "cd in/d && sha256sum --quiet -c ../../sums && cat ../../keep && find . -type f | wc -l")
	if e.State != "completed" || e.Stdout.Text != fmt.Sprintf("keep\n%d\n", files+1) {
		t.Errorf("target: %v %q %q", e.State, e.Stdout.GetText(), e.Stderr.GetText())
	}
	left, err := filepath.Glob(a.dir + "/node2/workspaces/*/tmp/*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestTransferCancel(t *testing.T) {
	a := newApart(t, "", "node1", "node2")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", `mkdir d; for i in $(seq 3000); do echo $i > d/$i; done`), "completed", "exited")
	wantState(t, m.on(t, "node2", "true"), "completed", "exited")
	from, to := m.workspace(t, "node1"), m.workspace(t, "node2")
	cancel := func(id string) *skerryv1.Transfer {
		t.Helper()
		res, err := m.tr.CancelTransfer(t.Context(), connect.NewRequest(&skerryv1.CancelTransferRequest{TransferId: id}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Transfer
	}
	a.eventually("the coordinator knows the head", func() bool {
		res, err := m.tr.ListTransferWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListTransferWorkspacesRequest{}))
		return err == nil && len(res.Msg.Workspaces) == 2 && res.Msg.Workspaces[0].Snapshot != ""
	})
	// Queued: the source is away.
	a.nodes["node1"].kill()
	queued := m.transfer(t, &skerryv1.StartTransferRequest{Source: from, Target: to}, "d:queued")
	if got := cancel(queued.Id); got.State != "cancelled" {
		t.Errorf("queued: %v", got)
	}
	a.nodes["node1"].start()
	a.up("node1")
	// While something else holds the workspace: nothing is written.
	hold := m.start(t, "sleep 60", &skerryv1.RunOptions{Runner: "node2"})
	held := m.transfer(t, &skerryv1.StartTransferRequest{Source: from, Target: to}, "d:held")
	a.eventually("the transfer waits for the lane", func() bool {
		res, err := m.tr.GetTransfer(t.Context(), connect.NewRequest(&skerryv1.GetTransferRequest{TransferId: held.Id, FileLimit: 1}))
		return err == nil && len(res.Msg.Files) == 1 && res.Msg.Transfer.Counts.Pending == 3001
	})
	cancel(held.Id)
	end, files := m.ended(t, held.Id)
	if end.State != "cancelled" || end.Counts.Cancelled != 3001 || files["held/7"].GetState() != "cancelled" {
		t.Errorf("held: %v %v", end, files["held/7"])
	}
	if _, err := m.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: hold.Id})); err != nil {
		t.Fatal(err)
	}
	m.wait(t, hold.Id)
	// At any moment: what is told is what is there.
	for i := range 4 {
		name := fmt.Sprintf("t%d", i)
		tr := m.transfer(t, &skerryv1.StartTransferRequest{Source: from, Target: to}, "d:"+name)
		time.Sleep(time.Duration(i*150) * time.Millisecond)
		cancel(tr.Id)
		end, files := m.ended(t, tr.Id)
		done := 0
		for _, f := range files {
			if f.State == "completed" && f.Type == "file" {
				done++
			}
		}
		e := m.on(t, "node2", "mkdir -p "+name+"; ls "+name+" | wc -l")
		if e.Stdout.GetText() != fmt.Sprintf("%d\n", done) {
			t.Errorf("%s: %v: %d completed, %s are there", name, end, done, e.Stdout.GetText())
		}
	}
	// Cancelling what has ended changes nothing.
	if got := cancel(held.Id); got.State != "cancelled" {
		t.Errorf("again: %v", got)
	}
}
