package runnerd

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/proto/identity"
)

// registerSelf registers what the daemon tells of its own part in the cluster.
func (d *Daemon) registerSelf(reg prometheus.Registerer) {
	reg.MustRegister(identity.ExpiryMetric("runner", d.identity.NotAfter),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_runner_attached", Help: "1 while a coordinator sends this runner work."},
			func() float64 {
				if d.Ready() {
					return 1
				}
				return 0
			}))
}

// storeCollector reads the store's statistics at each scrape.
type storeCollector struct {
	store   *cas.Store
	objects *prometheus.Desc
	bytes   *prometheus.Desc
}

func registerStore(reg prometheus.Registerer, store *cas.Store) {
	reg.MustRegister(storeCollector{store: store,
		objects: prometheus.NewDesc("skerry_runner_store_objects", "Objects in the content store.", nil, nil),
		bytes:   prometheus.NewDesc("skerry_runner_store_bytes", "Bytes that the content store's packs take on disk.", nil, nil)})
}

// Describe implements prometheus.Collector.
func (c storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.objects
	ch <- c.bytes
}

// Collect implements prometheus.Collector.
func (c storeCollector) Collect(ch chan<- prometheus.Metric) {
	stats, err := c.store.Stats(context.Background())
	if err != nil {
		return // a closed store has no figures
	}
	ch <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(stats.Objects))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(stats.PackBytes))
}
