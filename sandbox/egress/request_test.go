package egress

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

func parse(s string) (*request, error) { return readRequest(bufio.NewReader(strings.NewReader(s))) }

// What two parsers could read in two ways is refused, so that nothing can be
// smuggled past the gateway.
func TestRequestsThatAreRefused(t *testing.T) {
	const get, host = "GET http://a.example/ HTTP/1.1\r\n", "Host: a.example\r\n"
	for name, text := range map[string]string{
		"origin form":                   "GET / HTTP/1.1\r\n" + host + "\r\n",
		"asterisk":                      "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
		"https URI":                     "GET https://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"other scheme":                  "GET ftp://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"HTTP/1.0":                      "GET http://a.example/ HTTP/1.0\r\n" + host + "\r\n",
		"HTTP/2":                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/1.10":                     "GET http://a.example/ HTTP/1.10\r\n" + host + "\r\n",
		"two spaces":                    "GET  http://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"tab":                           "GET\thttp://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"space in the URI":              "GET http://a.example/ b HTTP/1.1\r\n" + host + "\r\n",
		"SOCKS5":                        "\x05\x01\x00\r\n\r\n",
		"SOCKS4":                        "\x04\x01\x00\x50\x7f\x00\x00\x01\x00\r\n\r\n",
		"TLS":                           "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
		"method":                        "G(T http://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"trace":                         "TRACE http://a.example/ HTTP/1.1\r\n" + host + "\r\n",
		"empty line first":              "\r\n" + get + host + "\r\n",
		"bare LF":                       "GET http://a.example/ HTTP/1.1\n" + host + "\r\n",
		"all bare LF":                   "GET http://a.example/ HTTP/1.1\nHost: a.example\n\n",
		"bare LF in a value":            get + host + "X: a\nHost: b.example\r\n\r\n",
		"bare CR in a value":            get + host + "X: a\rHost: b.example\r\n\r\n",
		"NUL":                           get + host + "X: a\x00b\r\n\r\n",
		"DEL":                           get + host + "X: a\x7fb\r\n\r\n",
		"folded":                        get + host + "X: a\r\n b\r\n\r\n",
		"folded first":                  get + " X: a\r\n" + host + "\r\n",
		"space before colon":            get + "Host : a.example\r\n\r\n",
		"no colon":                      get + host + "X\r\n\r\n",
		"empty name":                    get + host + ": x\r\n\r\n",
		"no Host":                       get + "\r\n",
		"two Hosts":                     get + host + host + "\r\n",
		"other Host":                    get + "Host: b.example\r\n\r\n",
		"other port in Host":            get + "Host: a.example:81\r\n\r\n",
		"port missing in Host":          "GET http://a.example:81/ HTTP/1.1\r\n" + host + "\r\n",
		"list in Host":                  get + "Host: a.example, b.example\r\n\r\n",
		"other Host of CONNECT":         "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
		"user in URI":                   "GET http://a.example@b.example/ HTTP/1.1\r\n" + host + "\r\n",
		"escaped host":                  "GET http://a%2eexample/ HTTP/1.1\r\n" + host + "\r\n",
		"backslash":                     "GET http://a.example\\@b.example/ HTTP/1.1\r\n" + host + "\r\n",
		"fragment":                      "GET http://a.example/#x HTTP/1.1\r\n" + host + "\r\n",
		"raw bytes":                     "GET http://a.example/\xff HTTP/1.1\r\n" + host + "\r\n",
		"length and chunks":             get + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
		"two lengths":                   get + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
		"the same length twice":         get + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"list of lengths":               get + host + "Content-Length: 3, 3\r\n\r\nabc",
		"signed length":                 get + host + "Content-Length: +3\r\n\r\nabc",
		"hexadecimal length":            get + host + "Content-Length: 0x3\r\n\r\nabc",
		"negative length":               get + host + "Content-Length: -3\r\n\r\nabc",
		"huge length":                   get + host + "Content-Length: 99999999999999999999\r\n\r\nabc",
		"other coding":                  get + host + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"identity":                      get + host + "Transfer-Encoding: identity\r\n\r\n",
		"obscured coding":               get + host + "Transfer-Encoding: xchunked\r\n\r\n",
		"two codings":                   get + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"space before the coding colon": get + host + "Transfer-Encoding : chunked\r\n\r\n",
		"expectation":                   get + host + "Expect: 200-ok\r\n\r\n",
		"CONNECT without port":          "CONNECT a.example HTTP/1.1\r\n\r\n",
		"CONNECT with path":             "CONNECT a.example:443/ HTTP/1.1\r\n\r\n",
		"CONNECT with scheme":           "CONNECT http://a.example:443 HTTP/1.1\r\n\r\n",
		"CONNECT with body":             "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
		"cut off":                       get + host,
		"long":                          get + host + "X: " + strings.Repeat("a", maxHeadBytes) + "\r\n\r\n",
		"many headers":                  get + host + strings.Repeat("X: a\r\n", maxHeaders) + "\r\n",
		"endless line":                  strings.Repeat("a", 2*maxHeadBytes),
	} {
		t.Run(name, func(t *testing.T) {
			q, err := parse(text)
			if err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("accepted: %+v (%v)", q, err)
			}
			if r := refusalOf(err); r.status < 400 || r.why == "" {
				t.Errorf("%+v", r)
			}
		})
	}
	if _, err := parse(""); !errors.Is(err, io.EOF) {
		t.Errorf("nothing at all: %v", err)
	}
}

func TestRequestsThatAreServed(t *testing.T) {
	for text, want := range map[string]string{
		"CONNECT Mirror.example:443 HTTP/1.1\r\nHost: mirror.example:443\r\n\r\n":                                    "mirror.example:443 ",
		"CONNECT mirror.example:443 HTTP/1.0\r\n\r\n":                                                                "mirror.example:443 ",
		"CONNECT mirror.example:443 HTTP/1.1\r\nHost: mirror.example\r\nContent-Length: 0\r\n\r\n":                   "mirror.example:443 ",
		"GET http://A.example HTTP/1.1\r\nHost: a.EXAMPLE\r\n\r\n":                                                   "a.example:80 /",
		"GET HTTP://a.example?q=1 HTTP/1.1\r\nHost:a.example:80 \r\n\r\n":                                            "a.example:80 /?q=1",
		"POST http://a.example:81/b?c HTTP/1.1\r\nHost: a.example:81\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n": "a.example:81 /b?c",
	} {
		q, err := parse(text)
		if err != nil || q.target.String()+" "+q.uri != want {
			t.Errorf("%q: %+v, %v", text, q, err)
		}
	}
}

func TestHopByHopHeadersStay(t *testing.T) {
	q, err := parse("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nProxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nKeep-Alive: 5\r\nX-Other: 2\r\nAccept: a\r\nAccept: b\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range q.endToEnd() {
		names = append(names, f.name+"="+f.value)
	}
	if got := strings.Join(names, " "); got != "X-Other=2 Accept=a Accept=b" {
		t.Errorf("passed on: %s", got)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	f.Add("CONNECT a.example:443 HTTP/1.0\r\n\r\n")
	f.Add("POST http://[::1]:81/b HTTP/1.1\r\nHost: [::1]:81\r\nContent-Length: 3\r\n\r\nabc")
	f.Fuzz(func(t *testing.T, s string) {
		q, err := parse(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(q.uri, " \r\n\t") || q.target.port == 0 || (q.target.host == "") == !q.target.addr.IsValid() {
			t.Errorf("%q: %+v", s, q)
		}
		for _, h := range q.endToEnd() {
			if strings.ContainsAny(h.name+h.value, "\r\n\x00") || h.name == "" {
				t.Errorf("%q passes header %q: %q", s, h.name, h.value)
			}
		}
	})
}
