package coordinator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/coordinator/coordinatortest"
	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// selfSigned writes a certificate for 127.0.0.1.
func selfSigned(t *testing.T) (TLS, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := TLS{CertFile: filepath.Join(t.TempDir(), "c.pem"), KeyFile: filepath.Join(t.TempDir(), "k.pem")}
	for path, block := range map[string]*pem.Block{files.CertFile: {Type: "CERTIFICATE", Bytes: der}, files.KeyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return files, roots
}

// One TLS port takes HTTP/1.1, HTTP/2 and a runner's link.
func TestServeWithTLS(t *testing.T) {
	cfg := testConfig(t.TempDir())
	var roots *x509.CertPool
	cfg.TLS, roots = selfSigned(t)
	k := startWith(t, cfg)
	k.url = strings.Replace(k.url, "http:", "https:", 1)
	conn, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Token: k.token("runner", "r1"), Name: "r1",
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- link.Serve(ctx, conn, coordinatortest.NewRunner("r1").Handler(ctx)) }()
	k.until("runner up", func() bool { return k.RunnersUp() == 1 })
	token := k.token("agent", "ann")
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: h2}
		client := rpc.NewExecutionServiceClient(bearer{&http.Client{Transport: transport}, token}, k.url)
		if _, err := client.RunShell(t.Context(), shell("true")); err != nil {
			t.Errorf("h2=%v: %v", h2, err)
		}
		transport.CloseIdleConnections()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// series gathers values by name and labels; of a histogram, its count.
func series(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "skerry_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	k := startWithDeps(t, testConfig(t.TempDir()), Deps{Logger: testLogger(t), Registerer: reg})
	k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
	_, _ = ann.executions.GetExecution(t.Context(), get("nope"))
	_, _ = k.as("bad").executions.GetExecution(t.Context(), get("nope"))
	got := series(t, reg)
	for name, want := range map[string]float64{
		"coordinator_runners up": 1, "coordinator_runners down": 0, "coordinator_calls_in_flight": 0, "coordinator_panics_total": 0,
		"coordinator_rpc_duration_seconds ok ExecutionService/RunShell":            1,
		"coordinator_rpc_duration_seconds not_found ExecutionService/GetExecution": 1,
		"coordinator_refused_calls_total unauthenticated":                          1,
		"raft_leader": 1, "raft_has_leader": 1, "raft_members voter": 1, "raft_members_healthy": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"raft_applied_index", "raft_commit_index", "raft_last_index", "raft_term", "raft_commit_duration_seconds"} {
		if got[name] == 0 {
			t.Errorf("no %s in %v", name, got)
		}
	}
}

// A follower of logs must not keep the daemon from stopping.
func TestServeStopsWithOpenStreams(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	r.OnFollow = func(ctx context.Context, _ *skerryv1.FollowExecutionLogsRequest, out *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
		if err := out.Send(&skerryv1.FollowExecutionLogsResponse{}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	k.run(r)
	ann := k.as(k.token("agent", "ann"))
	must[skerryv1.ListFilesResponse](t)(ann.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{})))
	stream, err := ann.executions.FollowExecutionLogs(t.Context(), connect.NewRequest(
		&skerryv1.FollowExecutionLogsRequest{ExecutionId: r.AddExecution("ann", time.Now())}))
	if err != nil || !stream.Receive() {
		t.Fatalf("follow: %v", err)
	}
	k.stop()
	if stream.Receive() || stream.Err() == nil {
		t.Error("the stream goes on, or ended as if complete")
	}
	_ = stream.Close()
}
