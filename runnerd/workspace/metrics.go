package workspace

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	commits    prometheus.Histogram
	mismatches prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{commits: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "skerry_runner_commit_seconds",
		Help:    "Time to snapshot a workspace and make the snapshot durable as its head.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
	}), mismatches: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "skerry_runner_cache_mismatches_total",
		Help: "Files that were not as the stat cache said, found by reading a share of them anew.",
	})}
	reg.MustRegister(m.commits, m.mismatches)
	return m
}
