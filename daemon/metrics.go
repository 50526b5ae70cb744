// Package daemon has what the mains of all daemons do alike: serving metrics
// and health on a port of its own.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second
	stopGrace     = 2 * time.Second
)

// NewRegistry has what all daemons tell: the process, the Go runtime and what was
// built.
func NewRegistry(daemon, version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	built := prometheus.NewGauge(prometheus.GaugeOpts{Name: "skerry_build_info", Help: "1, with the daemon and its version as labels.",
		ConstLabels: prometheus.Labels{"daemon": daemon, "version": version, "goversion": runtime.Version()}})
	built.Set(1)
	r.MustRegister(built, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// ServeMetrics answers /metrics from gatherer, and everything else by health,
// on ln until ctx ends. It owns ln. Nothing there needs a token.
func ServeMetrics(ctx context.Context, ln net.Listener, gatherer prometheus.Gatherer, health http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.Handle("/", health)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// Health answers /healthz always and /readyz by ready.
func Health(ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return mux
}
