package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	// Takes the metrics of Raft, which have a prefix of their own.
	registerer prometheus.Registerer
}

// newMetrics registers with r; nil: with nobody.
func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	f := promauto.With(prometheus.WrapRegistererWithPrefix("skerry_coordinator_", r))
	return &metrics{
		behind: f.NewGauge(prometheus.GaugeOpts{Name: "replicas_behind", Help: "Workspaces with a policy of replication whose head no other runner has, as of the leader's last look."}),
		oldest: f.NewGauge(prometheus.GaugeOpts{Name: "replica_oldest_seconds", Help: "Age of the oldest replica that is behind its workspace's head."}),

		registerer: r,
		factory:    f,
		rpc: f.NewHistogramVec(prometheus.HistogramOpts{Name: "rpc_duration_seconds",
			Help:    "Time to answer a call, waiting included, by method and result code.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"method", "code"}),
		commit: f.NewHistogram(prometheus.HistogramOpts{Name: "raft_commit_duration_seconds",
			Help:    "Time from proposing a command to its being applied.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}),
		panics: f.NewCounter(prometheus.CounterOpts{Name: "panics_total", Help: "Handlers that panicked."}),
		refused: f.NewCounterVec(prometheus.CounterOpts{Name: "refused_calls_total",
			Help: "Calls refused before a handler, by reason: unauthenticated, permission_denied, ..."}, []string{"reason"}),
	}
}

// replicas notes how far replication is behind.
func (m *metrics) replicas(behind int, oldest time.Duration) {
	m.behind.Set(float64(behind))
	m.oldest.Set(oldest.Seconds())
}

func (m *metrics) observe(method, code string, since time.Time) {
	m.rpc.WithLabelValues(method, code).Observe(time.Since(since).Seconds())
}

// watch registers gauges that read a running coordinator.
func (m *metrics) watch(c *Coordinator) {
	gauge := func(name, help string, read func() float64) {
		m.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	gauge("runners_up", "Runners with a live link.", func() float64 { return float64(c.links.count()) })
	gauge("calls_in_flight", "Calls being answered.", func() float64 { return float64(c.inFlight.Load()) })
	gauge("is_leader", "1 on the leader.", func() float64 {
		return number(c.leads())
	})
	m.watchRaft(c)
	gauge("raft_applied_index", "Index of the last applied log entry.", func() float64 { return float64(c.node.raft.AppliedIndex()) })
	gauge("raft_commit_index", "Index of the last committed log entry.", func() float64 { return float64(c.node.raft.CommitIndex()) })
}
