package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// deadEndpoint is one that nothing listens on.
func deadEndpoint(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "http://" + ln.Addr().String()
}

func TestCallsMoveToAnEndpointThatCanBeDialled(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(calls, " ")
	}
	serve := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, name+":"+string(body))
			if r.URL.Path == "/break" {
				panic(http.ErrAbortHandler)
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	one, two := serve("one"), serve("two")
	client := &http.Client{Transport: newFailover(deadEndpoint(t)+", "+one.URL+"/,"+two.URL, http.DefaultTransport)}
	post := func(path string) error {
		// A reader of its own kind has no way to be read twice.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, one.URL+path, io.NopCloser(strings.NewReader("hello")))
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	for range 2 {
		if err := post("/"); err != nil {
			t.Fatal(err)
		}
	}
	// What was sent is not sent again elsewhere.
	if err := post("/break"); err == nil {
		t.Error("a broken call succeeded")
	}
	if got := seen(); got != "one:hello one:hello one:hello" {
		t.Errorf("calls %q", got)
	}
	one.Close()
	if err := post("/"); err != nil || !strings.HasSuffix(seen(), " two:hello") {
		t.Errorf("with the first gone: %v, %q", err, seen())
	}
	two.Close()
	var op *net.OpError
	if err := post("/"); !errors.As(err, &op) {
		t.Errorf("with all gone: %v", err)
	}
}

func TestEndpointLists(t *testing.T) {
	for _, tt := range []struct{ list, want string }{
		{"https://a:1", ""},
		{"https://a:1/path/", ""},
		{"https://a:1, https://b:2/", ""},
		{"https://a:1,https://b:2/path", "has a path"},
		{"https://a:1,b:2", "is no URL"},
		{"https://me@a:1", "user name"},
	} {
		err := checkEndpoints(tt.list)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", tt.list, err)
		}
	}
	saved := "https://a:1,https://b:2"
	for list, want := range map[string]bool{"https://b:2": true, "https://a:1/,https://b:2": true, "https://c:3": false, "https://a:1,https://c:3": false} {
		if within(list, saved) != want {
			t.Errorf("within(%q) is %v", list, !want)
		}
	}
}
