package identity

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// expiry collects the end of one certificate.
type expiry struct {
	desc *prometheus.Desc
	end  func() time.Time
}

// ExpiryMetric collects when a certificate ends, by its name, as
// skerry_certificate_expires_timestamp_seconds. While end gives zero there is no
// certificate, and no metric: an age of 0 would raise an alarm.
func ExpiryMetric(certificate string, end func() time.Time) prometheus.Collector {
	return expiry{end: end, desc: prometheus.NewDesc("skerry_certificate_expires_timestamp_seconds",
		"When a certificate ends, by certificate: coordinator and runner are renewed by themselves, authority and api are the operator's.",
		nil, prometheus.Labels{"certificate": certificate})}
}

// Describe implements prometheus.Collector.
func (e expiry) Describe(ch chan<- *prometheus.Desc) { ch <- e.desc }

// Collect implements prometheus.Collector.
func (e expiry) Collect(ch chan<- prometheus.Metric) {
	if end := e.end(); !end.IsZero() {
		ch <- prometheus.MustNewConstMetric(e.desc, prometheus.GaugeValue, float64(end.Unix()))
	}
}
