package identity

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestExpiryMetric(t *testing.T) {
	var end time.Time
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(ExpiryMetric("runner", func() time.Time { return end }), ExpiryMetric("api", func() time.Time { return time.Time{} }))
	if families, err := reg.Gather(); err != nil || len(families) != 0 {
		t.Errorf("without a certificate: %v, %v", families, err)
	}
	end = time.Unix(1_900_000_000, 0)
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	m := families[0].GetMetric()[0]
	if m.GetGauge().GetValue() != 1.9e9 || m.GetLabel()[0].GetValue() != "runner" {
		t.Errorf("%v", m)
	}
}
