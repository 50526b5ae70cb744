package egress

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

const publicAddr = "93.184.215.14"

func hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Keep-Alive", "timeout=5")
	fmt.Fprintf(w, "host=%s uri=%s", r.Host, r.RequestURI)
}

func TestPlainRequest(t *testing.T) {
	var seen http.Header
	address := web(t, func(w http.ResponseWriter, r *http.Request) { seen = r.Header.Clone(); hello(w, r) })
	f := newFixture(t, nil, map[string][]string{"a.example": {publicAddr}}, map[string]string{publicAddr + ":80": address}, "a.example")
	answer := f.ask(t, "GET http://A.Example/b?c HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: secret\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(answer, "host=a.example uri=/b?c") || strings.Contains(answer, "Keep-Alive") {
		t.Errorf("answer:\n%s", answer)
	}
	if seen.Get("X-End") != "2" || seen.Get("X-Hop") != "" || seen.Get("Proxy-Authorization") != "" {
		t.Errorf("the server saw %v", seen)
	}
	if f.dialled() != publicAddr+":80" || strings.Join(f.names.asked, " ") != "a.example." {
		t.Errorf("dialled %s, asked for %v", f.dialled(), f.names.asked)
	}
	f.log.await(t, "execution=ex_1", "policy=test", "target=a.example:80", "decision=allow", "bytes_down=")
}

// What follows a request on its connection is read by nobody.
func TestNoSecondRequestOnAConnection(t *testing.T) {
	served := make(chan string, 10)
	address := web(t, func(w http.ResponseWriter, r *http.Request) { served <- r.RequestURI; hello(w, r) })
	f := newFixture(t, nil, nil, nil, address)
	one := "GET http://" + address + "/one HTTP/1.1\r\nHost: " + address + "\r\n\r\n"
	answer := f.ask(t, one+strings.ReplaceAll(one, "/one", "/two"))
	if strings.Count(answer, "HTTP/1.1") != 1 || len(served) != 1 {
		t.Errorf("%d served, answer:\n%s", len(served), answer)
	}
	smuggled := "POST http://" + address + "/post HTTP/1.1\r\nHost: " + address + "\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET http://" + address + "/three HTTP/1.1\r\nHost: " + address + "\r\n\r\n"
	f.ask(t, smuggled)
	if <-served; len(served) != 1 || <-served != "/post" {
		t.Error("a request was smuggled")
	}
}

func TestBodies(t *testing.T) {
	address := web(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		fmt.Fprintf(w, "%s %d %v %s", r.Method, len(b), r.ContentLength, strings.Join(r.TransferEncoding, ""))
	})
	f := newFixture(t, nil, nil, nil, address)
	for _, c := range []struct{ head, body, want string }{
		{"POST /x|Content-Length: 5", "hello", "POST 5 5 "},
		{"POST /x|Transfer-Encoding: chunked", "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n", "POST 11 -1 chunked"},
		{"PUT /x|Content-Length: 0", "", "PUT 0 0 "},
		{"POST /x|Content-Length: 5\r\nExpect: 100-continue", "hello", "POST 5 5 "},
		{"POST /chunked|Content-Length: 5", "hello", "POST 5 5 "},
		{"GET /x|Accept: *", "", "GET 0 0 "},
	} {
		line, headers, _ := strings.Cut(c.head, "|")
		method, path, _ := strings.Cut(line, " ")
		answer := f.ask(t, method+" http://"+address+path+" HTTP/1.1\r\nHost: "+address+"\r\n"+headers+"\r\n\r\n"+c.body)
		answer = strings.TrimPrefix(answer, "HTTP/1.1 100 Continue\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.head, err, answer)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || string(b) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.head, b, err, c.want)
		}
	}
	head := f.ask(t, "HEAD http://"+address+"/ HTTP/1.1\r\nHost: "+address+"\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 200 OK") || !strings.HasSuffix(head, "\r\n\r\n") {
		t.Errorf("HEAD: %q", head)
	}
}

// A cut-off answer is seen to be cut off.
func TestAnswerCutOff(t *testing.T) {
	for name, text := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	} {
		address := raw(t, func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, text)
		})
		f := newFixture(t, nil, nil, nil, address)
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(f.get(t, "http://"+address+"/"))), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: %q passes as whole", name, b)
		}
		f.log.await(t, "decision=allow", "reason=broken_off")
	}
}

// A hostile server that is on the list can't hurt the gateway or the client's
// parser.
func TestHostileServers(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "",
		"no HTTP":       "SSH-2.0-OpenSSH_9.2\r\n",
		"endless head":  "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 100),
		"interims":      strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20),
		"switch":        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
		"two lengths":   "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"coded lengths": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
		// A space before the colon makes a name that is on no list of what is
		// dropped, and that clients may trim.
		"spaced verdict": "HTTP/1.1 200 OK\r\nSkerry-Egress : decision=deny; reason=not_allowed\r\nContent-Length: 2\r\n\r\nab",
		"spaced length":  "HTTP/1.1 200 OK\r\nContent-Length : 5\r\nContent-Length: 2\r\n\r\nab",
		"spaced coding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
		"spaced interim": "HTTP/1.1 103 Early Hints\r\nContent-Length : 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			address := raw(t, func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, text)
			})
			f := newFixture(t, nil, nil, nil, address)
			wantRefused(t, f.get(t, "http://"+address+"/"), http.StatusBadGateway, reasonBroken)
		})
	}
}

func TestTunnel(t *testing.T) {
	address, pool := secureWeb(t, hello, "a.example")
	f := newFixture(t, nil, map[string][]string{"a.example": {"2606:4700::1 " + publicAddr}},
		map[string]string{"[2606:4700::1]:443": "127.0.0.1:1", publicAddr + ":443": address}, "a.example:443")
	c, refused := f.tunnel(t, "A.EXAMPLE.:443")
	if refused != "" {
		t.Fatal(refused)
	}
	secure := tls.Client(c, &tls.Config{ServerName: "a.example", RootCAs: pool})
	fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(secure)
	if err != nil || !strings.HasSuffix(string(b), "host=a.example uri=/") {
		t.Fatalf("%s, %v", b, err)
	}
	secure.Close()
	if f.dialled() != "[2606:4700::1]:443 "+publicAddr+":443" {
		t.Errorf("dialled %s", f.dialled())
	}
	f.log.await(t, "method=connect", "target=a.example:443", "decision=allow", "bytes_up=", "bytes_down=")
}

// The ClientHello must ask for the tunnel's own server, or for none.
func TestTunnelChecksTheServerName(t *testing.T) {
	reached := make(chan string, 10)
	cert, pool := certificate(t, "a.example", "b.example")
	server := tls.NewListener(listenTCP(t), &tls.Config{Certificates: []tls.Certificate{cert},
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) { reached <- h.ServerName; return nil, nil }})
	address := serveOn(t, server, http.HandlerFunc(hello))
	f := newFixture(t, nil, map[string][]string{"a.example": {publicAddr}}, map[string]string{publicAddr + ":443": address}, "a.example")
	shake := func(name string, change func(*tls.Config)) error {
		c, refused := f.tunnel(t, "a.example:443")
		if refused != "" {
			t.Fatal(refused)
		}
		cfg := &tls.Config{ServerName: name, RootCAs: pool}
		if change != nil {
			change(cfg)
		}
		return tls.Client(c, cfg).Handshake()
	}
	for _, name := range []string{"a.example", "A.Example"} {
		if err := shake(name, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		<-reached
	}
	if err := shake("", func(c *tls.Config) { c.InsecureSkipVerify = true }); err != nil {
		t.Errorf("without a name: %v", err)
	}
	<-reached
	var alert *net.OpError
	if err := shake("b.example", nil); !errors.As(err, &alert) || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("another name: %v", err)
	}
	f.log.await(t, "target=a.example:443", "decision=deny", "reason=sni_mismatch")
	if len(reached) != 0 {
		t.Errorf("the server was asked for %s", <-reached)
	}
}

// GREASE for encrypted hellos, which browsers and curl send, is no obstacle; a
// real one would show its public name, which is not the tunnel's.
func TestTunnelWithECHGrease(t *testing.T) {
	for name, want := range map[string]bool{"a.example": true, "public.example": false} {
		got, read, err := readHello(strings.NewReader(string(withGrease(t, clientHello(t, name)))))
		if err != nil || len(read) == 0 || (got == "a.example") != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// clientHello gives the record that Go's client sends first.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(theirs, &tls.Config{ServerName: name}).Handshake()
		theirs.Close()
	}()
	buf := make([]byte, 16<<10)
	n, err := ours.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	ours.Close()
	<-done
	return buf[:n]
}

// withGrease adds an outer encrypted_client_hello extension of random content.
func withGrease(t *testing.T, record []byte) []byte {
	t.Helper()
	ext := []byte{0, 0, 1, 0, 1, 7, 0, 32} // outer, HKDF-SHA256, AES-128-GCM, config id, 32 bytes of key
	ext = append(ext, make([]byte, 32)...)
	ext = append(ext, 0, 144)
	ext = append(ext, make([]byte, 144)...)
	ext = append([]byte{0xfe, 0x0d, byte(len(ext) >> 8), byte(len(ext))}, ext...)
	out := append([]byte(nil), record...)
	at := 5 + 4 + 2 + 32
	at += 1 + int(out[at])
	at += 2 + int(out[at])<<8 + int(out[at+1])
	at += 1 + int(out[at])
	grow := func(i, size int) {
		n := 0
		for _, b := range out[i : i+size] {
			n = n<<8 | int(b)
		}
		n += len(ext)
		for k := size - 1; k >= 0; k-- {
			out[i+k] = byte(n)
			n >>= 8
		}
	}
	grow(at, 2)
	grow(6, 3)
	grow(3, 2)
	return append(out, ext...)
}

func TestTunnelCarriesTLSOnly(t *testing.T) {
	got := make(chan string, 1)
	address := raw(t, func(c net.Conn) { b, _ := io.ReadAll(c); got <- string(b) })
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01\x00\x05\x02hell", "\x80\x2e\x01\x03\x01"} {
		f := newFixture(t, nil, nil, nil, address)
		c, refused := f.tunnel(t, address)
		if refused != "" {
			t.Fatal(refused)
		}
		_, _ = io.WriteString(c, text)
		_ = c.(*net.UnixConn).CloseWrite()
		if b, _ := io.ReadAll(c); len(b) != 0 {
			t.Errorf("%q is answered %q", text, b)
		}
		f.log.await(t, "decision=deny", "reason=not_tls")
		if s := <-got; s != "" {
			t.Errorf("the server got %q", s)
		}
	}
}
