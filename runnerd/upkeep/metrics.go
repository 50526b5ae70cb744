package upkeep

import (
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
)

type metrics struct {
	collections *prometheus.CounterVec
	seconds     prometheus.Histogram
	removed     prometheus.Counter
	freed       prometheus.Counter
	collected   prometheus.Gauge
	scrubBytes  prometheus.Counter
	damaged     prometheus.Counter
	scrubbed    prometheus.Gauge
	free        prometheus.Gauge
	refused     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const prefix = "skerry_runner_store_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	m := &metrics{
		collections: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "collections_total", Help: "Collections of the content store, by result."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "collection_seconds", Help: "Time of a collection that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 10)}),
		removed:    counter("removed_objects_total", "Objects that collections removed."),
		freed:      counter("freed_bytes_total", "Bytes of packs that collections removed."),
		collected:  gauge("last_collection_timestamp_seconds", "When the last collection that succeeded began."),
		scrubBytes: counter("scrubbed_bytes_total", "Bytes of packs that the background scrub read."),
		damaged:    counter("damaged_records_total", "Damaged records that the background scrub met."),
		scrubbed:   gauge("last_scrub_timestamp_seconds", "When the last scrub that read everything began."),
		free:       gauge("disk_free_bytes", "Bytes that the daemon may still use of its data directory's file system."),
		refused:    counter("refused_total", "Writers refused because the disk or the store had no room."),
	}
	for _, result := range []string{"ok", "error"} {
		m.collections.WithLabelValues(result)
	}
	reg.MustRegister(m.collections, m.seconds, m.removed, m.freed, m.collected, m.scrubBytes, m.damaged, m.scrubbed, m.free, m.refused)
	return m
}

func (m *metrics) collection(rep cas.GCReport, err error) {
	if err != nil {
		m.collections.WithLabelValues("error").Inc()
		return
	}
	m.collections.WithLabelValues("ok").Inc()
	m.seconds.Observe(rep.Duration.Seconds())
	m.removed.Add(float64(rep.Removed))
	m.freed.Add(float64(rep.BytesFreed))
}
