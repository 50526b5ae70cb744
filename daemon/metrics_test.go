package daemon

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestRegistryTellsWhatWasBuilt(t *testing.T) {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(NewRegistry("runnerd", "1.2.3"), promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`skerry_build_info{daemon="runnerd",goversion="go`, `version="1.2.3"} 1`, "process_start_time_seconds ", "go_goroutines "} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
}
