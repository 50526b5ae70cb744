package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// splitEndpoints gives the endpoints of a list that is separated by commas.
func splitEndpoints(text string) []string {
	var out []string
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimRight(strings.TrimSpace(part), "/"); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// checkEndpoints refuses what cannot be called, and lists whose members a call
// could not be moved between.
func checkEndpoints(text string) error {
	list := splitEndpoints(text)
	for _, endpoint := range list {
		u, err := url.Parse(endpoint)
		switch {
		case err == nil && u.User != nil:
			return errors.New("endpoint: has a user name; the token alone says who calls")
		case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
			return fmt.Errorf("endpoint: %q is no URL such as https://skerry.example:7420", endpoint)
		case len(list) > 1 && u.Path != "":
			return fmt.Errorf("endpoint: %q has a path; several endpoints must have none", endpoint)
		}
	}
	return nil
}

// within reports whether all endpoints of a list are in another.
func within(list, all string) bool {
	known := make(map[string]bool)
	for _, endpoint := range splitEndpoints(all) {
		known[endpoint] = true
	}
	for _, endpoint := range splitEndpoints(list) {
		if !known[endpoint] {
			return false
		}
	}
	return true
}

// failover moves a call to the next endpoint when one cannot be dialled, as then
// nothing was sent. Later calls begin with the one that answered.
type failover struct {
	endpoints []*url.URL
	next      http.RoundTripper
	first     atomic.Int64
}

func newFailover(text string, next http.RoundTripper) http.RoundTripper {
	f := &failover{next: next}
	for _, endpoint := range splitEndpoints(text) {
		if u, err := url.Parse(endpoint); err == nil {
			f.endpoints = append(f.endpoints, u)
		}
	}
	if len(f.endpoints) < 2 {
		return next
	}
	return f
}

// RoundTrip implements http.RoundTripper.
func (f *failover) RoundTrip(r *http.Request) (res *http.Response, err error) {
	first := f.first.Load()
	for i := range int64(len(f.endpoints)) {
		at := (first + i) % int64(len(f.endpoints))
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.Host = f.endpoints[at].Scheme, f.endpoints[at].Host, ""
		var body *heldBody
		if r.Body != nil {
			body = &heldBody{ReadCloser: r.Body}
			out.Body = body
		}
		res, err = f.next.RoundTrip(out)
		last := i == int64(len(f.endpoints))-1
		if err == nil || !notDialled(err) || body.touched() || last || r.Context().Err() != nil {
			f.first.Store(at)
			return res, errors.Join(err, body.release())
		}
	}
	return res, err
}

func notDialled(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// heldBody stays open until release, since a transport closes the body of a call
// that it did not send.
type heldBody struct {
	io.ReadCloser
	read, closed, released atomic.Bool
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (b *heldBody) Close() error {
	b.closed.Store(true)
	if b.released.Load() {
		return b.ReadCloser.Close()
	}
	return nil
}

func (b *heldBody) touched() bool { return b != nil && b.read.Load() }

// release makes Close count, one that was asked for before too.
func (b *heldBody) release() error {
	if b == nil {
		return nil
	}
	b.released.Store(true)
	if b.closed.Load() {
		return b.ReadCloser.Close()
	}
	return nil
}
