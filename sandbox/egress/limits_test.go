package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestConnectionLimits(t *testing.T) {
	f := newFixture(t, func(c *Config, p *Policy) { p.MaxConnections, c.MaxConnections = 2, 3 }, nil, nil)
	other, err := f.Open("ex_2", "test", os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	for range 2 {
		held = append(held, dialUnix(t, f.dir))
	}
	answer, _ := io.ReadAll(dialUnix(t, f.dir))
	wantRefused(t, string(answer), http.StatusTooManyRequests, reasonConns)
	dialUnix(t, other)
	answer, _ = io.ReadAll(dialUnix(t, other))
	wantRefused(t, string(answer), http.StatusServiceUnavailable, reasonGateway)
	for _, c := range held {
		c.Close()
	}
	eventually(t, "room again", func() bool { return f.conns.Load() == 1 })
	wantRefused(t, f.get(t, "http://a.example/"), http.StatusForbidden, reasonRemoved)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not come: %s", what)
		}
	}
}

func TestByteLimits(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 1<<20)
	address := web(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(big)
	})
	f := newFixture(t, func(_ *Config, p *Policy) { p.MaxBytesDown = 200_000 }, nil, nil, address)
	if answer := f.get(t, "http://"+address+"/"); len(answer) > 300_000 {
		t.Errorf("%d bytes came through", len(answer))
	}
	f.log.await(t, "decision=limit", "reason=max_bytes")
	answer := f.get(t, "http://"+address+"/")
	wantRefused(t, answer, http.StatusTooManyRequests, reasonBytes)
	if !strings.Contains(answer, "max_bytes_down") {
		t.Error(answer)
	}
	f = newFixture(t, func(_ *Config, p *Policy) { p.MaxBytesUp = 200_000 }, nil, nil, address)
	answer = f.ask(t, fmt.Sprintf("PUT http://%s/ HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", address, address, 300_000, big[:300_000]))
	wantRefused(t, answer, http.StatusTooManyRequests, reasonBytes)
}

// A tunnel on which nothing moves ends; one that moves one way only does not.
func TestIdleAndDuration(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	f := newFlow(&Policy{IdleTimeout: 200 * time.Millisecond, MaxDuration: time.Hour})
	c := &flowConn{Conn: ours, f: f}
	began := time.Now()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) < 150*time.Millisecond {
		t.Errorf("idle: %v after %s", err, time.Since(began))
	}
	f = newFlow(&Policy{IdleTimeout: 200 * time.Millisecond, MaxDuration: 700 * time.Millisecond})
	c = &flowConn{Conn: ours, f: f}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // the other way moves all the time
		defer close(done)
		for ctx.Err() == nil {
			_ = f.moved(nil, 1)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	began = time.Now()
	_, err := c.Read(make([]byte, 1))
	if d := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || d < 600*time.Millisecond {
		t.Errorf("duration: %v after %s", err, d)
	}
	cancel()
	<-done
}

// One side's end shortens the time that the other may be silent.
func TestHalfClosedFlow(t *testing.T) {
	f := newFlow(&Policy{IdleTimeout: time.Hour, MaxDuration: 2 * time.Hour})
	if d := time.Until(f.deadline()); d < 50*time.Minute {
		t.Errorf("whole: %s", d)
	}
	f.half.Store(true)
	if d := time.Until(f.deadline()); d > halfIdle {
		t.Errorf("half: %s", d)
	}
}

// A client that never finishes its request, or never reads the answer, holds
// nothing for ever.
func TestSlowClients(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 16<<20)
	address := web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(big) })
	f := newFixture(t, func(_ *Config, p *Policy) { p.IdleTimeout = 500 * time.Millisecond }, nil, nil, address)
	c := dialUnix(t, f.dir)
	fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
	f.log.await(t, "decision=allow", "reason=timeout")
}

// The log of one execution's requests is bounded, and says what it lacks.
func TestAuditFlood(t *testing.T) {
	f := newFixture(t, nil, nil, nil)
	for range auditBurst + 100 {
		f.get(t, "http://a.example/")
	}
	f.Release("ex_1")
	f.log.await(t, "audit records left out", "execution=ex_1", "count=")
	if n := strings.Count(f.log.String(), "msg=egress "); n > auditBurst+auditRate*20 {
		t.Errorf("%d records", n)
	}
	if n := testutil.ToFloat64(f.metrics.requests.WithLabelValues("test", "http", "deny", reasonRemoved)); n != auditBurst+100 {
		t.Errorf("%v counted", n)
	}
}

// The labels of the metrics are a fixed few, whatever a client sends.
func TestMetricsHaveFewLabels(t *testing.T) {
	f := newFixture(t, nil, nil, nil, "a.example")
	for i := range 50 {
		f.get(t, fmt.Sprintf("http://x%d.example/", i))
		f.ask(t, fmt.Sprintf("M%d http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", i))
	}
	if n := testutil.CollectAndCount(f.metrics.requests); n > 3 {
		t.Errorf("%d series", n)
	}
	if n, err := testutil.GatherAndCount(f.reg); err != nil || n > 12 {
		t.Errorf("%d, %v", n, err)
	}
}

// Executions have sockets of their own, closed to other users, and a directory
// that goes with them.
func TestSocketsApart(t *testing.T) {
	f := newFixture(t, nil, nil, nil)
	info, err := os.Stat(f.dir)
	want := os.FileMode(0o700)
	if os.Getuid() == 0 {
		want = 0o710
	}
	if err != nil || info.Mode().Perm() != want {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := f.Open("ex_2", "nothing", 1); !errors.Is(err, ErrNoPolicy) {
		t.Errorf("unknown policy: %v", err)
	}
	for _, id := range []string{"", ".", "..", "a/b", "../x", ".hidden"} {
		if _, err := f.Open(id, "test", 1); err == nil {
			t.Errorf("%q is taken for a name", id)
		}
	}
	f.Release("ex_1")
	f.Release("ex_1")
	if _, err := os.Stat(f.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after its release: %v", err)
	}
}

// A later gateway takes the sockets up again: the directories' inodes, which
// the sandboxes have mounted, stay the same. What ended meanwhile is swept.
func TestResume(t *testing.T) {
	f := newFixture(t, nil, nil, nil, "a.example")
	before, err := os.Stat(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := f.Open("ex_gone", "test", os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	c := dialUnix(t, f.dir)
	f.Close()
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) { // ended or reset
		t.Errorf("a connection at the end: %v", err)
	}
	if _, err := f.Open("ex_3", "test", 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	g := newFixture(t, func(c *Config, _ *Policy) { c.Dir = f.cfg.Dir }, nil, nil, "b.example")
	if err := g.Resume("ex_old", "removed", os.Getgid()); err != nil {
		t.Fatal(err)
	}
	if err := g.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not swept: %v", err)
	}
	after, err := os.Stat(f.dir)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the directory is another one (%v)", err)
	}
	wantRefused(t, g.get(t, "http://c.example/"), http.StatusForbidden, reasonNotAllowed)
	g.dir = filepath.Join(g.cfg.Dir, "ex_old")
	wantRefused(t, g.get(t, "http://a.example/"), http.StatusForbidden, reasonRemoved)
}

// 200 executions with all kinds of ends leave no descriptor, goroutine or file.
func TestNothingIsLeft(t *testing.T) {
	address := web(t, hello)
	f := newFixture(t, nil, nil, nil, address)
	f.get(t, "http://"+address+"/")
	descriptors, goroutines := open(t), runtime.NumGoroutine()
	for i := range 200 {
		id := fmt.Sprintf("ex_n%d", i)
		dir, err := f.Open(id, "test", os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		one := &fixture{Gateway: f.Gateway, dir: dir}
		one.get(t, "http://"+address+"/")
		half := dialUnix(t, dir)
		_, _ = io.WriteString(half, "GET http:")
		c, _ := one.tunnel(t, address)
		f.Release(id)
		half.Close()
		c.Close()
	}
	eventually(t, "no connection is open", func() bool { return f.conns.Load() == 0 })
	eventually(t, "goroutines and descriptors are as before", func() bool { return open(t) <= descriptors && runtime.NumGoroutine() <= goroutines })
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func open(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func BenchmarkOpenAndRelease(b *testing.B) {
	f := newFixture(b, nil, nil, nil)
	for i := 0; b.Loop(); i++ {
		if _, err := f.Open(fmt.Sprintf("ex_b%d", i), "test", os.Getgid()); err != nil {
			b.Fatal(err)
		}
		f.Release(fmt.Sprintf("ex_b%d", i))
	}
}

// A head that stalls is answered with the time-out, and with nothing of the host.
func TestHeadTimeout(t *testing.T) {
	r := refusalOf(&net.OpError{Op: "read", Net: "unix", Addr: &net.UnixAddr{Name: "/data/secret"}, Err: os.ErrDeadlineExceeded})
	if r.status != http.StatusRequestTimeout || strings.Contains(r.why, "secret") {
		t.Errorf("%+v", r)
	}
	if gone(r) || !gone(&net.OpError{Op: "read", Err: os.ErrClosed}) {
		t.Error("a broken connection and a slow one are confused")
	}
}

// A flood right before the end does not hide that a connection was open.
func TestLastRecordIsCounted(t *testing.T) {
	served := make(chan struct{})
	address := web(t, func(w http.ResponseWriter, r *http.Request) { close(served); <-r.Context().Done() })
	f := newFixture(t, nil, nil, nil, address)
	fmt.Fprintf(dialUnix(t, f.dir), "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
	<-served
	f.Gateway.mu.Lock()
	s := f.sessions["ex_1"]
	f.Gateway.mu.Unlock()
	for _, budget := range s.audits {
		budget.SetBurst(0) // as a flood leaves it
	}
	f.Release("ex_1")
	f.log.await(t, "audit records left out", "execution=ex_1", "count=1")
}
