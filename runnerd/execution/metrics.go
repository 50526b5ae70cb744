package execution

import (
	"github.com/prometheus/client_golang/prometheus"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

type metrics struct {
	total          *prometheus.CounterVec
	launch         prometheus.Histogram
	duration       prometheus.Histogram
	wait           prometheus.Histogram
	commitFailures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, e *Engine) *metrics {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skerry_runner_executions_total",
			Help: "Executions that ended, by state and verdict."}, []string{"state", "verdict"}),
		launch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skerry_runner_launch_seconds",
			Help: "Time to start the supervisor of an execution.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skerry_runner_execution_seconds",
			Help: "Time from the start of a command to its end.", Buckets: prometheus.ExponentialBuckets(0.005, 4, 12)}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skerry_runner_queue_seconds",
			Help: "Time from acceptance to the start of a command.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 12)}),
		commitFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_runner_commit_failures_total",
			Help: "Commits of a workspace that failed."}),
	}
	reg.MustRegister(m.total, m.launch, m.duration, m.wait, m.commitFailures,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_runner_executions_running", Help: "Executions that run now."},
			func() float64 { running, _ := e.Load(); return float64(running) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_runner_executions_queued", Help: "Executions that wait."},
			func() float64 { _, queued := e.Load(); return float64(queued) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_runner_slots", Help: "Executions that may run at once."},
			func() float64 { return float64(cap(e.slots)) }))
	for verdict, state := range troubles {
		m.total.WithLabelValues(state, verdict) // a rate does not see the first event of a series that begins with it
	}
	return m
}

// troubles are verdicts to watch for, and the states that they go with.
var troubles = map[string]string{
	skerryv1.VerdictLost: skerryv1.StateUnknown, skerryv1.VerdictStartFailed: skerryv1.StateFailed,
	skerryv1.VerdictOOMKilled: skerryv1.StateFailed, skerryv1.VerdictQuotaExceeded: skerryv1.StateFailed,
}

func (m *metrics) ended(r *skerryv1.Execution) {
	m.total.WithLabelValues(r.State, r.Verdict.Kind).Inc()
	if r.Times.Started == nil {
		return
	}
	m.wait.Observe(r.Times.Started.AsTime().Sub(r.Times.Accepted.AsTime()).Seconds())
	m.duration.Observe(r.Times.Ended.AsTime().Sub(r.Times.Started.AsTime()).Seconds())
}
