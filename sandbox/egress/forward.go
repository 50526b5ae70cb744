package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"
)

// maxInterim bounds the 1xx answers before the real one.
const maxInterim = 8

// forward passes one plain request to the server and one answer back. Both heads
// are written anew, with the framing of the body as the gateway understood it,
// and both connections end afterwards: whatever follows is read by nobody, so
// that the two sides can't disagree about where a message ends.
func (x *exchange) forward(from, to *flowConn, client bufferedConn, q *request) {
	head, err := x.head(q)
	if err == nil {
		_, err = io.WriteString(to, head)
	}
	if err != nil {
		x.answerFailure(client, err)
		return
	}
	if q.expects {
		if _, err := io.WriteString(from, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			x.ended(err)
			return
		}
	}
	sent := make(chan error, 1)
	go func() {
		err := sendBody(to, from, q.length)
		if isRefusal(err) {
			_ = to.Close() // or else the answer would be waited for
		}
		sent <- err
	}()
	started, err := x.answer(from, to, q.method)
	_ = to.Close()
	from.f.stop() // the sender may still wait for the client
	_ = client.SetReadDeadline(time.Now())
	if bodyErr := <-sent; isRefusal(bodyErr) {
		err = bodyErr
	}
	if err != nil && !started {
		x.answerFailure(client, err)
		return
	}
	x.ended(err)
}

func isRefusal(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// answerFailure tells the client why there is no answer of the server.
func (x *exchange) answerFailure(client bufferedConn, err error) {
	var r *refusal
	switch {
	case errors.As(err, &r):
	case errors.Is(err, errCapped):
		r = fail(http.StatusBadGateway, reasonBroken, "the head of the server's answer is over %d bytes", maxHeadBytes)
	case timedOut(x.s.ctx, err):
		r = fail(http.StatusGatewayTimeout, reasonTimeout, "the server did not answer within %s", x.s.policy.IdleTimeout)
	default:
		r = fail(http.StatusBadGateway, reasonBroken, "the server gave no valid answer")
	}
	x.refuse(client, r)
}

// head is the request for the next hop.
func (x *exchange) head(q *request) (string, error) {
	fields, err := x.s.policy.addHeaders(q.target, q.endToEnd())
	if err != nil {
		return "", err
	}
	var b strings.Builder
	host := q.target.String()
	if q.target.port == portHTTP {
		host = strings.TrimSuffix(host, ":80")
	}
	uri := q.uri
	if x.viaUpstream(q.target) {
		uri = "http://" + host + uri
	}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", q.method, uri, host)
	if x.viaUpstream(q.target) {
		b.WriteString(x.s.g.cfg.Upstream.credentials())
	}
	for _, f := range fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
	}
	switch {
	case q.length < 0:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case q.length > 0 || len(q.all("Content-Length")) > 0:
		fmt.Fprintf(&b, "Content-Length: %d\r\n", q.length)
	}
	b.WriteString("\r\n")
	return b.String(), nil
}

// sendBody passes exactly the body on; chunks are made anew, trailers dropped.
func sendBody(to, from *flowConn, length int64) error {
	if length >= 0 {
		_, err := io.CopyN(onlyWriter{to}, onlyReader{from}, length)
		return err
	}
	chunks := httputil.NewChunkedWriter(to)
	if _, err := io.Copy(chunks, httputil.NewChunkedReader(onlyReader{from})); err != nil {
		return err
	}
	if err := chunks.Close(); err != nil {
		return err
	}
	_, err := io.WriteString(to, "\r\n")
	return err
}

// answer passes the server's answer on. started says that the client has got a
// part of it already.
func (x *exchange) answer(from, to *flowConn, method string) (started bool, err error) {
	capped := &cappedReader{r: onlyReader{to}, left: maxHeadBytes}
	r := bufio.NewReader(capped)
	res, err := readAnswer(r, method)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	capped.left = -1
	length := res.ContentLength
	bodiless := method == http.MethodHead || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified
	if _, err := io.WriteString(from, answerHead(res, length, bodiless)); err != nil {
		return true, err
	}
	if bodiless {
		return true, nil
	}
	if length >= 0 {
		_, err := io.Copy(onlyWriter{from}, res.Body)
		return true, err
	}
	chunks := httputil.NewChunkedWriter(from)
	if _, err := io.Copy(chunks, res.Body); err != nil {
		return true, err // without the last chunk the client sees that it is cut off
	}
	if err := chunks.Close(); err != nil {
		return true, err
	}
	_, err = io.WriteString(from, "\r\n")
	return true, err
}

// readAnswer skips the answers before the answer.
func readAnswer(r *bufio.Reader, method string) (*http.Response, error) {
	for range maxInterim {
		res, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return nil, err
		}
		if err := checkNames(res.Header); err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the server switches protocols, unasked")
		case res.StatusCode >= 200:
			return res, nil
		}
	}
	return nil, errors.New("too many interim answers")
}

// checkNames refuses what the standard parser lets pass: spaces in a header's
// name. "Content-Length :" is no Content-Length to it, but is one to others.
func checkNames(h http.Header) error {
	for name := range h {
		if !isToken(name) {
			return fmt.Errorf("header %.40q has no valid name", name)
		}
	}
	return nil
}

func answerHead(res *http.Response, length int64, bodiless bool) string {
	drop := append(slices.Clone(hopByHop), "skerry-egress") // only the gateway speaks for itself
	for _, value := range res.Header.Values("Connection") {
		for name := range strings.SplitSeq(value, ",") {
			drop = append(drop, strings.ToLower(strings.TrimSpace(name)))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\nConnection: close\r\n", res.StatusCode, http.StatusText(res.StatusCode))
	for name, values := range res.Header {
		if slices.Contains(drop, strings.ToLower(name)) {
			continue
		}
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, oneLine.Replace(v))
		}
	}
	switch {
	case length >= 0 && (!bodiless || length > 0):
		fmt.Fprintf(&b, "Content-Length: %d\r\n", length)
	case !bodiless:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	}
	b.WriteString("\r\n")
	return b.String()
}

var oneLine = strings.NewReplacer("\r", " ", "\n", " ")
