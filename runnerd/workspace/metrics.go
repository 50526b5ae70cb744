package workspace

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	commits prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{commits: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "skerry_runner_commit_seconds",
		Help:    "Time to snapshot a workspace and make the snapshot durable as its head.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
	})}
	reg.MustRegister(m.commits)
	return m
}
