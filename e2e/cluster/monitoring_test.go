package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	dashboardFile = "../../deploy/grafana/skerry.json"
	rulesFile     = "../../deploy/prometheus/rules/skerry.yml"
	operationsDoc = "../../docs/operations.md"
)

// quiet are the queries that have nothing to show in a cluster this young.
var quiet = []string{"skerry_runner_store_last_scrub_timestamp_seconds"}

// What the dashboard and the rules ask for is what the daemons tell, and the
// documentation has all of it.
func TestMonitoringOfARealCluster(t *testing.T) {
	b := up(t, "--runners", "2", "--runner-yaml", "network: {policies: {web: {allow: ['allowed.example'], public: true}}}\nstore: {collect_every: 1s}\n")
	p := b.newProm()
	w := b.newWork()
	panels := readDashboard(t).panels()
	if len(panels) < 30 {
		t.Fatalf("only %d panels were read", len(panels))
	}
	missing := map[string]string{}
	defer func() {
		if t.Failed() && len(missing) > 0 {
			t.Errorf("no data: %v", missing)
		}
	}()
	b.until("data of all queries", func() bool {
		w.round()
		clear(missing)
		for _, panel := range panels {
			for _, q := range panel.Targets {
				values, err := p.values(plainQuery(q.Expr))
				if err != nil {
					t.Fatalf("%s: %s: %v", panel.Title, q.Expr, err)
				}
				if len(values) == 0 && !slices.ContainsFunc(quiet, func(name string) bool { return strings.Contains(q.Expr, name) }) {
					missing[q.Expr] = panel.Title
				}
			}
		}
		return len(missing) == 0
	})

	for expr, want := range map[string]float64{"sum(skerry_raft_leader)": 1, "sum(skerry_raft_members_healthy)": 3, `max(skerry_raft_members{state="voter"})`: 3,
		`sum(skerry_coordinator_runners{state="up"})`: 2, "sum(skerry_runner_attached)": 2, `sum(up{job=~"skerry-.*"})`: 5, "count(skerry_build_info)": 5,
		"count(skerry_certificate_expires_timestamp_seconds - time() > 3600)": 8} {
		if got, err := p.values(expr); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v (%v), want %v", expr, got, err, want)
		}
	}
	t.Run("rules", func(t *testing.T) { b.checkRules(t, p) })
	exposed := b.exposed()
	t.Run("names", func(t *testing.T) { checkNames(t, exposed) })
	t.Run("documentation", func(t *testing.T) { checkDocumentation(t, exposed) })
}

// work gives every metric something to tell.
type work struct {
	*testbed
	agent, source, target string
	transfers             int
}

func (b *testbed) newWork() *work {
	w := &work{testbed: b, agent: b.newAgent("ann")}
	for _, runner := range []string{"r1", "r2"} {
		w.sh("echo "+runner+" > file", map[string]any{"runner": runner})
	}
	var all struct{ Workspaces []struct{ ID, Runner string } }
	b.as(w.agent, "WorkspaceService/ListWorkspaces", map[string]any{}, &all)
	for _, ws := range all.Workspaces {
		if ws.Runner == "r1" {
			w.source = ws.ID
		} else {
			w.target = ws.ID
		}
	}
	b.as(w.agent, "WorkspaceService/SetReplication", map[string]any{"workspace": w.source, "policy": "on_commit"}, nil)
	return w
}

func (w *work) sh(command string, options map[string]any) {
	w.t.Helper()
	options["waitMs"] = 10000
	w.as(w.agent, "ExecutionService/RunShell", map[string]any{"command": command, "options": options}, nil)
}

// round runs, fails, is refused, denied and transferred once.
func (w *work) round() {
	w.t.Helper()
	w.sh("date +%N > file", map[string]any{"runner": "r1"})
	w.sh(`exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://denied.example/ HTTP/1.1\r\nHost: denied.example\r\n\r\n' >&3; head -1 <&3`,
		map[string]any{"runner": "r2", "network": "web"})
	for _, token := range []string{w.agent, "wrong"} {
		if o := w.agents.call(w.t.Context(), w.Endpoint, token, "ExecutionService/GetExecution", map[string]any{"executionId": "ex_none"}, nil); o.kind == done {
			w.t.Errorf("an execution that is not there was found")
		}
	}
	w.transfers++
	w.as(w.agent, "TransferService/StartTransfer", map[string]any{"source": w.source, "target": w.target, "conflict": "overwrite",
		"mappings": []map[string]any{{"source": "file", "target": "copy"}}}, nil)
}

// checkRules wants all rules to be evaluated, and no alarm where all is well.
func (b *testbed) checkRules(t *testing.T, p *prom) {
	rules := p.rules()
	if len(rules) < 20 {
		t.Errorf("only %d rules are loaded", len(rules))
	}
	for _, r := range rules {
		if r.Health != "ok" || r.LastError != "" || r.State == "firing" {
			t.Errorf("%s %s: health %s, state %q, error %q", r.Type, r.Name, r.Health, r.State, r.LastError)
		}
		if r.Type != "recording" || strings.Contains(r.Name, "failures") {
			continue
		}
		b.until("record of "+r.Name, func() bool {
			values, err := p.values(r.Name)
			return err == nil && len(values) > 0
		})
	}
}

var metricName = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)

// namesIn lists the names of Skerry's metrics in a text.
func namesIn(text string) (out []string) {
	for _, name := range metricName.FindAllString(text, -1) {
		if strings.HasPrefix(name, "skerry_") && name != "skerry_test" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkNames finds names in the dashboard and the rules that nobody tells.
func checkNames(t *testing.T, exposed map[string]string) {
	dashboard := readDashboard(t)
	text := dashboard.variables()
	for _, panel := range dashboard.panels() {
		for _, q := range panel.Targets {
			text += q.Expr + "\n"
		}
	}
	for _, name := range namesIn(text + readFile(t, rulesFile)) {
		family := name
		if exposed[family] == "" {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				family = strings.TrimSuffix(family, suffix)
			}
			if exposed[family] != "histogram" {
				t.Errorf("no daemon tells %s", name)
			}
		}
	}
	for name, kind := range exposed {
		if (kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, kind)
		}
	}
}

func checkDocumentation(t *testing.T, exposed map[string]string) {
	documented := namesIn(readFile(t, operationsDoc))
	for name := range exposed {
		if !slices.Contains(documented, name) {
			t.Errorf("%s does not tell of %s", operationsDoc, name)
		}
	}
	for _, name := range documented {
		if exposed[name] == "" {
			t.Errorf("%s tells of %s, which no daemon has", operationsDoc, name)
		}
	}
}

var typeLine = regexp.MustCompile(`(?m)^# TYPE (skerry_\w+) (\w+)$`)

// exposed are the types of all metrics of all nodes, by name.
func (b *testbed) exposed() map[string]string {
	b.t.Helper()
	out := map[string]string{}
	for _, n := range b.Nodes {
		res, err := http.Get(n.MetricsURL + "/metrics")
		if err != nil {
			b.t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			b.t.Fatal(err)
		}
		for _, m := range typeLine.FindAllStringSubmatch(string(text), -1) {
			out[m[1]] = m[2]
		}
	}
	return out
}

type panel struct {
	ID          int
	Title, Type string
	GridPos     struct{ H, W, X, Y int }
	Datasource  struct{ Type, UID string }
	Targets     []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// panels are those with queries.
func (d dashboard) panels() (out []panel) {
	for _, p := range d.Panels {
		if p.Type != "row" {
			out = append(out, p)
		}
	}
	return out
}

// variables are the queries that fill the dashboard's choices.
func (d dashboard) variables() (text string) {
	for _, v := range d.Templating.List {
		text += v.Definition + "\n"
	}
	return text
}

var variable = strings.NewReplacer("$__rate_interval", "10s", "$cluster", "test", "$coordinator", ".*", "$runner", ".*")

// plainQuery is a query as Grafana sends it.
func plainQuery(expr string) string { return variable.Replace(expr) }

// The dashboard is one that Grafana 10 and newer show as it is meant.
func TestDashboardIsSound(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 38 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	if want := []string{"datasource", "cluster", "coordinator", "runner"}; !slices.Equal(names, want) {
		t.Errorf("variables %v, want %v", names, want)
	}
	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q: its id or title is there twice, or missing", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x > 23 {
					t.Fatalf("%q lies over %q, or out of the grid", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	for _, p := range d.panels() {
		if !slices.Contains([]string{"timeseries", "stat", "table"}, p.Type) || p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%q: type %s, data source %s, unit %q, %d queries", p.Title, p.Type, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.RefID == "" || refs[q.RefID] || q.Datasource.UID != "${datasource}" || !strings.Contains(q.Expr, `cluster="$cluster"`) {
				t.Errorf("%q: query %q: %s", p.Title, q.RefID, q.Expr)
			}
			refs[q.RefID] = true
		}
	}
}
