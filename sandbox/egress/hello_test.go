package egress

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// retryRequest is the record of a HelloRetryRequest, as far as it matters here.
func retryRequest() []byte {
	body := slices.Concat([]byte{3, 3}, retryRandom, []byte{0, 0x13, 1, 0, 0, 0})
	message := append([]byte{2, 0, 0, byte(len(body))}, body...)
	return append([]byte{recordHandshake, 3, 3, 0, byte(len(message))}, message...)
}

// A server that asks for a second hello must not hear another name in it:
// OpenSSL's would go by that one. It does not matter when the client sends it,
// nor what comes before it.
func TestSecondHelloIsCheckedToo(t *testing.T) {
	ccs := []byte{20, 3, 3, 0, 1, 1}
	early := []byte{23, 3, 3, 0, 3, 'a', 'b', 'c'}
	for name, c := range map[string]struct {
		between []byte
		name    string
		atOnce  bool
		passes  bool
	}{
		"same": {ccs, "a.example", false, true}, "same at once": {slices.Concat(ccs, early), "a.example", true, true},
		"other": {ccs, "b.example", false, false}, "other at once": {nil, "b.example", true, false}, "other behind early data": {slices.Concat(ccs, early), "b.example", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := clientHello(t, "a.example"), clientHello(t, c.name)
			want := slices.Concat(first, c.between)
			if c.passes {
				want = append(want, second...)
			}
			heard := make(chan []byte, 1)
			address := raw(t, func(conn net.Conn) {
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // or a name that passes is waited for
				got := make([]byte, len(first))
				_, _ = io.ReadFull(conn, got)
				_, _ = conn.Write(retryRequest())
				rest, _ := io.ReadAll(io.LimitReader(conn, int64(len(want)-len(first))))
				if !c.passes {
					more, _ := io.ReadAll(conn) // until it is closed
					rest = append(rest, more...)
				}
				heard <- append(got, rest...)
			})
			f := newFixture(t, nil, map[string][]string{"a.example": {publicAddr}}, map[string]string{publicAddr + ":443": address}, "a.example")
			conn, refused := f.tunnel(t, "a.example:443")
			if refused != "" {
				t.Fatal(refused)
			}
			_, _ = conn.Write(first)
			answer := make([]byte, len(retryRequest()))
			if !c.atOnce {
				if _, err := io.ReadFull(conn, answer); err != nil || !bytes.Equal(answer, retryRequest()) {
					t.Fatalf("answer %x, %v", answer, err)
				}
			}
			_, _ = conn.Write(slices.Concat(c.between, second))
			if got := <-heard; !bytes.Equal(got, want) {
				t.Fatalf("the server heard %d bytes, want %d; of the other name: %v", len(got), len(want), bytes.Contains(got, []byte("b.example")))
			}
			if !c.passes {
				f.log.await(t, "target=a.example:443", "decision=deny", "reason=sni_mismatch")
			}
		})
	}
}

// Handshakes with a real HelloRetryRequest go through.
func TestHandshakeWithRetry(t *testing.T) {
	cert, pool := certificate(t, "a.example")
	retried := make(chan bool, 1)
	server := tls.NewListener(listenTCP(t), &tls.Config{Certificates: []tls.Certificate{cert}, CurvePreferences: []tls.CurveID{tls.CurveP384}})
	address := serveOn(t, server, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		retried <- r.TLS.HelloRetryRequest
		hello(w, r)
	}))
	f := newFixture(t, nil, map[string][]string{"a.example": {publicAddr}}, map[string]string{publicAddr + ":443": address}, "a.example")
	conn, refused := f.tunnel(t, "a.example:443")
	if refused != "" {
		t.Fatal(refused)
	}
	secure := tls.Client(conn, &tls.Config{ServerName: "a.example", RootCAs: pool, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(secure)
	if err != nil || !strings.HasSuffix(string(b), "host=a.example uri=/") {
		t.Fatalf("%s, %v", b, err)
	}
	if !<-retried {
		t.Error("the server did not ask for a second hello")
	}
}

// One hello, whole records: a hello in pieces is put together, a second one
// behind it in the same record is refused.
func TestHelloInRecords(t *testing.T) {
	one := clientHello(t, "a.example")
	pieces := func(body []byte, size int) (out []byte) {
		for part := range slices.Chunk(body, size) {
			out = slices.Concat(out, []byte{recordHandshake, 3, 1, byte(len(part) >> 8), byte(len(part))}, part)
		}
		return out
	}
	for _, size := range []int{1, 3, 100, 16000} {
		sent := pieces(one[recordHead:], size)
		name, read, err := readHello(bytes.NewReader(slices.Concat(sent, []byte("more"))))
		if err != nil || name != "a.example" || !bytes.Equal(read, sent) {
			t.Errorf("in pieces of %d: %q, %d of %d bytes, %v", size, name, len(read), len(sent), err)
		}
	}
	two := pieces(slices.Concat(one[recordHead:], clientHello(t, "b.example")[recordHead:]), 16000)
	if name, _, err := readHello(bytes.NewReader(two)); err == nil {
		t.Errorf("two hellos in a record pass as one for %q", name)
	}
}
