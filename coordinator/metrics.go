package coordinator

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	pki "skerry.internal/proto/identity"
)

// metrics of one coordinator; no label holds an id or a name that callers choose.
type metrics struct {
	rpc     *prometheus.HistogramVec
	commit  prometheus.Histogram
	panics  prometheus.Counter
	refused *prometheus.CounterVec
	factory promauto.Factory

	behind prometheus.Gauge
	oldest prometheus.Gauge
	// By result: ok, error.
	replications *prometheus.CounterVec
	// Voters that the leader last found healthy.
	healthy atomic.Int64
	// End of the operator's certificate in Unix seconds; 0: none is used.
	apiExpires atomic.Int64
	// Takes the metrics of Raft, which have a prefix of their own.
	registerer prometheus.Registerer
}

// newMetrics registers with r; nil: with nobody.
func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	f := promauto.With(prometheus.WrapRegistererWithPrefix("skerry_coordinator_", r))
	m := &metrics{
		behind: f.NewGauge(prometheus.GaugeOpts{Name: "replicas_behind", Help: "Workspaces with a policy of replication whose head no other runner has, as of the leader's last look."}),
		oldest: f.NewGauge(prometheus.GaugeOpts{Name: "replica_oldest_seconds", Help: "Age of the oldest replica that is behind its workspace's head."}),
		replications: f.NewCounterVec(prometheus.CounterOpts{Name: "replications_total",
			Help: "Attempts to copy a workspace's head to another runner, by result: ok, error."}, []string{"result"}),

		registerer: r,
		factory:    f,
		rpc: f.NewHistogramVec(prometheus.HistogramOpts{Name: "rpc_duration_seconds",
			Help:    "Time to answer a call, waiting included, by method and result code.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"method", "code"}),
		commit: promauto.With(r).NewHistogram(prometheus.HistogramOpts{Name: "skerry_raft_commit_duration_seconds",
			Help:    "Time from proposing a command to its being applied.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}),
		panics: f.NewCounter(prometheus.CounterOpts{Name: "panics_total", Help: "Handlers that panicked."}),
		refused: f.NewCounterVec(prometheus.CounterOpts{Name: "refused_calls_total",
			Help: "Calls refused before a handler, by reason: unauthenticated, permission_denied, ..."}, []string{"reason"}),
	}
	for _, result := range []string{"ok", "error"} {
		m.replications.WithLabelValues(result) // a rate does not see the first event of a series that begins with it
	}
	return m
}

func (m *metrics) replicated(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.replications.WithLabelValues(result).Inc()
}

// replicas notes how far replication is behind.
func (m *metrics) replicas(behind int, oldest time.Duration) {
	m.behind.Set(float64(behind))
	m.oldest.Set(oldest.Seconds())
}

func (m *metrics) observe(method, code string, since time.Time) {
	m.rpc.WithLabelValues(method, code).Observe(time.Since(since).Seconds())
}

// watch registers what is read from a running coordinator at each scrape.
func (m *metrics) watch(c *Coordinator) {
	gauge := func(name, help string, labels prometheus.Labels, read func() float64) {
		m.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read)
	}
	gauge("calls_in_flight", "Calls being answered.", nil, func() float64 { return float64(c.inFlight.Load()) })
	const runners = "Runners by state, as the leader sees them; the other coordinators say 0."
	gauge("runners", runners, prometheus.Labels{"state": "up"}, func() float64 { up, _ := c.countRunners(); return up })
	gauge("runners", runners, prometheus.Labels{"state": "down"}, func() float64 { _, down := c.countRunners(); return down })
	m.watchRaft(c)
	m.registerer.MustRegister(pki.ExpiryMetric("coordinator", c.identity.NotAfter), pki.ExpiryMetric("authority", c.identity.AuthorityNotAfter),
		pki.ExpiryMetric("api", m.apiExpiry))
}

func (c *Coordinator) countRunners() (up, down float64) {
	if !c.leads() {
		return 0, 0
	}
	for _, r := range c.state.Read().Runners() {
		if c.links.get(r.GetName()) != nil {
			up++
		} else {
			down++
		}
	}
	return up, down
}

func (m *metrics) apiExpiry() time.Time {
	if at := m.apiExpires.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}
