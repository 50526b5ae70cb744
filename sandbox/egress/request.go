package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Bounds of one request's head.
const (
	maxHeadBytes = 32 << 10
	maxHeaders   = 100
	maxMethod    = 20
)

// Errors of a request, told to the client.
var (
	errHeadTooLarge = fmt.Errorf("the request's head is over %d bytes or %d headers", maxHeadBytes, maxHeaders)
	errNoProxyForm  = errors.New("this is a proxy: send CONNECT host:port, or a request for an absolute http:// URI")
	errHTTPS        = errors.New("https:// URIs go through CONNECT, so that the client speaks TLS with the server itself")
	errVersion      = errors.New("only HTTP/1.1 is spoken here, and HTTP/1.0 for CONNECT")
)

// request is one well-formed request of a client.
type request struct {
	method  string
	target  target
	tunnel  bool   // CONNECT
	uri     string // path and query for the server
	header  []field
	length  int64 // of the body; -1: chunked
	expects bool  // 100-continue
}

type field struct{ name, value string }

// readRequest reads a request's head as RFC 9112 has it, without any of the
// leniency that it permits: what two parsers could read in two ways is refused.
// It gives io.EOF if the client closes before it sends anything.
func readRequest(r *bufio.Reader) (*request, error) {
	head, err := readHead(r)
	if err != nil {
		return nil, err
	}
	first, rest, _ := strings.Cut(head, "\r\n")
	fields, err := parseFields(rest)
	if err != nil {
		return nil, err
	}
	q := &request{header: fields}
	if err := q.parseLine(first); err != nil {
		return nil, err
	}
	if err := q.checkHost(); err != nil {
		return nil, err
	}
	return q, q.parseBody()
}

// readHead gives everything up to the empty line, which it takes too.
func readHead(r *bufio.Reader) (string, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case len(head) > maxHeadBytes:
			return "", errHeadTooLarge
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(head) > 0:
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		}
		if bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			return string(head[:len(head)-2]), checkHead(head)
		}
		if string(head) == "\r\n" {
			return "", errors.New("the request begins with an empty line")
		}
		if bytes.HasSuffix(head, []byte("\n\n")) || string(head) == "\n" {
			return "", errBareByte
		}
	}
}

var errBareByte = errors.New("the head has a control character, or a CR or LF by itself")

// checkHead allows CR and LF together only, and no other control character but
// a tab.
func checkHead(head []byte) error {
	for i, c := range head {
		switch {
		case c == '\r':
			if i+1 >= len(head) || head[i+1] != '\n' {
				return errBareByte
			}
		case c == '\n':
			if i == 0 || head[i-1] != '\r' {
				return errBareByte
			}
		case c < ' ' && c != '\t', c == 0x7f:
			return errBareByte
		}
	}
	return nil
}

func parseFields(text string) ([]field, error) {
	var out []field
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\r\n"), "\r\n") {
		if line == "" {
			continue // no headers at all
		}
		if len(out) == maxHeaders {
			return nil, errHeadTooLarge
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) { // a folded line and a space before the colon are no tokens
			return nil, fmt.Errorf("header line %.40q has no valid name", line)
		}
		out = append(out, field{name, strings.Trim(value, " \t")})
	}
	return out, nil
}

func isToken(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(others, r))
	}) < 0
}

// parseLine reads METHOD SP TARGET SP VERSION.
func (q *request) parseLine(line string) error {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !isToken(parts[0]) || len(parts[0]) > maxMethod || parts[1] == "" || strings.ContainsRune(line, '\t') {
		return errors.New("the request line is not METHOD TARGET VERSION")
	}
	q.method = parts[0]
	q.tunnel = q.method == "CONNECT"
	if parts[2] != "HTTP/1.1" && !(q.tunnel && parts[2] == "HTTP/1.0") {
		return errVersion
	}
	if q.method == "TRACE" {
		return errors.New("TRACE is not served")
	}
	var err error
	if q.tunnel {
		q.target, err = parseTarget(parts[1], 0)
	} else {
		err = q.parseURI(parts[1])
	}
	if err != nil {
		return fmt.Errorf("the target %.80q %w", parts[1], err)
	}
	return nil
}

func (q *request) parseURI(uri string) error {
	scheme, rest, ok := strings.Cut(uri, "://")
	switch {
	case ok && strings.EqualFold(scheme, "https"):
		return errHTTPS
	case !ok || !strings.EqualFold(scheme, "http"):
		return errNoProxyForm
	}
	end := strings.IndexAny(rest, "/?#")
	authority := rest
	if end >= 0 {
		authority, q.uri = rest[:end], rest[end:]
	}
	if strings.ContainsAny(authority, "@\\%") {
		return errors.New("has a user, a backslash or an escape in its host")
	}
	if strings.ContainsRune(q.uri, '#') || !isASCII(q.uri) {
		return errors.New("has a fragment or an unescaped character")
	}
	if !strings.HasPrefix(q.uri, "/") {
		q.uri = "/" + q.uri
	}
	var err error
	q.target, err = parseTarget(authority, portHTTP)
	return err
}

// all gives the values of a header.
func (q *request) all(name string) []string {
	var out []string
	for _, f := range q.header {
		if strings.EqualFold(f.name, name) {
			out = append(out, f.value)
		}
	}
	return out
}

func (q *request) checkHost() error {
	hosts := q.all("Host")
	switch {
	case len(hosts) > 1:
		return errors.New("there is more than one Host header")
	case len(hosts) == 0 && q.tunnel:
		return nil // HTTP/1.0 had none
	case len(hosts) == 0:
		return errors.New("there is no Host header")
	}
	defaultPort := uint16(portHTTP)
	if q.tunnel {
		defaultPort = q.target.port
	}
	return q.target.sameHost(hosts[0], defaultPort)
}

var errBody = errors.New("Content-Length and Transfer-Encoding are ambiguous; send one Content-Length of digits, or Transfer-Encoding: chunked")

func (q *request) parseBody() error {
	lengths, codings := q.all("Content-Length"), q.all("Transfer-Encoding")
	switch {
	case len(lengths)+len(codings) > 1:
		return errBody
	case len(codings) == 1:
		if !strings.EqualFold(codings[0], "chunked") {
			return errBody
		}
		q.length = -1
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 53)
		if err != nil || strings.Trim(lengths[0], "0123456789") != "" {
			return errBody
		}
		q.length = int64(n)
	}
	if q.tunnel && q.length != 0 {
		return errors.New("CONNECT has no body")
	}
	expect := q.all("Expect")
	if len(expect) > 0 && (len(expect) > 1 || !strings.EqualFold(expect[0], "100-continue")) {
		return errors.New("the only expectation that can be met is 100-continue")
	}
	q.expects = len(expect) == 1
	return nil
}

// hopByHop are the headers that concern one connection only (RFC 9110, 7.6.1),
// and those that the gateway sets itself.
var hopByHop = []string{"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
	"transfer-encoding", "upgrade", "http2-settings", "expect", "host", "content-length"}

// endToEnd are the headers to pass on.
func (q *request) endToEnd() []field {
	drop := slices.Clone(hopByHop)
	for _, value := range q.all("Connection") {
		for name := range strings.SplitSeq(value, ",") {
			drop = append(drop, strings.ToLower(strings.TrimSpace(name)))
		}
	}
	var out []field
	for _, f := range q.header {
		if !slices.Contains(drop, strings.ToLower(f.name)) {
			out = append(out, f)
		}
	}
	return out
}
