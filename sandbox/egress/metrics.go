package egress

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics never have an execution or a host as a label.
type metrics struct {
	requests   *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	seconds    prometheus.Histogram
	suppressed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, g *Gateway) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skerry_egress_requests_total",
			Help: "Requests of sandboxes for the network, by policy, method (connect, http), decision (allow, deny, limit, fail, malformed) and reason."},
			[]string{"policy", "method", "decision", "reason"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skerry_egress_bytes_total",
			Help: "Bytes to (up) and from (down) servers for sandboxes."}, []string{"direction"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skerry_egress_request_seconds",
			Help: "Time from a sandbox's request to its end.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
		suppressed: prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_egress_audit_suppressed_total",
			Help: "Audit records left out since one execution made too many."}),
	}
	reg.MustRegister(m.requests, m.bytes, m.seconds, m.suppressed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_egress_connections", Help: "Connections of sandboxes that are open."},
			func() float64 { return float64(g.conns.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_egress_sockets", Help: "Executions that have a socket to the gateway."},
			func() float64 { return float64(g.openSessions()) }))
	for _, direction := range []string{"up", "down"} {
		m.bytes.WithLabelValues(direction)
	}
	return m
}

func (m *metrics) ended(x *exchange) {
	method := x.method
	if method == "" {
		method = "none" // refused before its head was understood
	}
	m.requests.WithLabelValues(x.s.policy.Name, method, string(x.decision), x.reason).Inc()
	m.seconds.Observe(time.Since(x.began).Seconds())
}
