package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prom is a real Prometheus that scrapes a cluster each second.
type prom struct {
	t   *testing.T
	url string
}

// newProm starts it with the rules that are shipped.
func (b *testbed) newProm() *prom {
	b.t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" {
			b.t.Fatalf("%v: make setup installs it", err)
		}
		b.t.Skipf("%v: Debian's package prometheus has it", err)
	}
	dir, address := b.t.TempDir(), freeAddress(b.t)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(b.scrapeConfig()), 0o600); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, 10*time.Second
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // ended by a signal
		if b.t.Failed() {
			b.t.Logf("--- prometheus\n%s", log.String())
		}
	})
	p := &prom{b.t, "http://" + address}
	b.until("prometheus", func() bool {
		res, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// scrapeConfig has the jobs that deploy/prometheus/prometheus.yml has.
func (b *testbed) scrapeConfig() string {
	b.t.Helper()
	rules, err := filepath.Abs("../../deploy/prometheus/rules/skerry.yml")
	if err != nil {
		b.t.Fatal(err)
	}
	text := "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [" + strconv.Quote(rules) + "]\nscrape_configs:\n"
	for _, role := range []string{"coordinator", "runner"} {
		var targets []string
		for _, n := range b.Nodes {
			if n.Role == role {
				targets = append(targets, strconv.Quote(strings.TrimPrefix(n.MetricsURL, "http://")))
			}
		}
		text += fmt.Sprintf("  - job_name: skerry-%s\n    static_configs: [{labels: {cluster: test}, targets: [%s]}]\n", role, strings.Join(targets, ", "))
	}
	return text
}

// get reads data of Prometheus' API.
func (p *prom) get(path string, query url.Values, data any) error {
	res, err := http.Get(p.url + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// values of an expression now, but for those that are no number.
func (p *prom) values(expr string) ([]float64, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	var out []float64
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		if !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	return out, nil
}

type promRule struct {
	Name, Type, Health, LastError, State string
}

func (p *prom) rules() (out []promRule) {
	p.t.Helper()
	var data struct{ Groups []struct{ Rules []promRule } }
	if err := p.get("/api/v1/rules", nil, &data); err != nil {
		p.t.Fatal(err)
	}
	for _, g := range data.Groups {
		out = append(out, g.Rules...)
	}
	return out
}
