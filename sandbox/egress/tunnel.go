package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// unrecognizedName is a fatal TLS alert that says so.
var unrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}

// tunnel lets client and server talk TLS. It carries nothing else, and the
// client must ask for the server that the tunnel was granted for: otherwise a
// name that is allowed would lead to every other one that the same front
// servers host.
func (x *exchange) tunnel(from, to *flowConn, client bufferedConn, q *request) {
	if _, err := from.Write([]byte(established)); err != nil {
		x.ended(err)
		return
	}
	_ = client.SetReadDeadline(time.Now().Add(headTimeout))
	hello, r := checkHello(client, q.target)
	if r != nil {
		x.decision, x.reason = r.decision, r.reason
		if r.reason == reasonSNI {
			_ = client.SetWriteDeadline(time.Now().Add(answerTimeout))
			_, _ = client.Write(unrecognizedName)
		}
		return
	}
	if _, err := to.Write(hello); err != nil {
		x.ended(err)
		return
	}
	x.ended(join(from, to))
}

// checkHello reads the first message of TLS and gives all bytes read.
func checkHello(client bufferedConn, t target) ([]byte, *refusal) {
	first, err := client.r.Peek(1)
	if err != nil {
		return nil, deny(reasonNotTLS, "nothing came through the tunnel within %s", headTimeout)
	}
	const handshake = 22
	if first[0] != handshake {
		return nil, deny(reasonNotTLS, "the tunnel carries TLS only")
	}
	name, read, err := readHello(client)
	switch {
	case err != nil:
		return nil, deny(reasonNotTLS, "the tunnel does not begin with a TLS ClientHello")
	case name == "":
		return read, nil
	}
	asked, _, err := parseHost(name)
	if err != nil || asked == "" || asked != t.host {
		return nil, deny(reasonSNI, "the client asks for the server %.80q in a tunnel to %s", name, t)
	}
	return read, nil
}

// maxHello bounds the first message; with post-quantum keys it is some 2 KiB.
const maxHello = 64 << 10

// errHelloRead ends the handshake, of which only the first message is wanted.
var errHelloRead = errors.New("hello read")

// readHello lets the standard library's server read the message: its parser
// refuses doubled extensions, several names and the like, which a server behind
// might read in another way. An encrypted hello (ECH), real or GREASE, is looked
// at from outside alone.
func readHello(r io.Reader) (name string, read []byte, err error) {
	var seen bytes.Buffer
	conn := helloConn{r: io.TeeReader(io.LimitReader(r, maxHello), &seen)}
	server := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS10, //nolint:gosec // nothing is negotiated
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			name = strings.Clone(info.ServerName)
			return nil, errHelloRead
		},
	})
	if err := server.Handshake(); !errors.Is(err, errHelloRead) {
		return "", nil, errors.Join(errors.New("no ClientHello"), err)
	}
	return name, seen.Bytes(), nil
}

// helloConn can be read only.
type helloConn struct {
	net.Conn // nil: nothing else is called during the first message
	r        io.Reader
}

func (c helloConn) Read(b []byte) (int, error)       { return c.r.Read(b) }
func (c helloConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c helloConn) Close() error                     { return nil }
func (c helloConn) SetDeadline(time.Time) error      { return nil }
func (c helloConn) SetReadDeadline(time.Time) error  { return nil }
func (c helloConn) SetWriteDeadline(time.Time) error { return nil }

// join copies both ways until both sides have ended, or one failed.
func join(client, server *flowConn) error {
	up := make(chan error, 1)
	go func() {
		err := transfer(server, client)
		if err != nil {
			_ = server.Close()
			_ = client.Close()
		}
		up <- err
	}()
	down := transfer(client, server)
	if down != nil {
		_ = server.Close()
		_ = client.Close()
	}
	return endOf(<-up, down)
}

// endOf says why a tunnel ended; nil is a normal end. Once the server has ended
// its side, what the client still sends is lost as a matter of course.
func endOf(up, down error) error {
	switch {
	case isRefusal(up):
		return up
	case down == nil, isRefusal(down):
		return down
	case up == nil || errors.Is(up, net.ErrClosed):
		return down
	}
	return up
}

func transfer(to, from *flowConn) error {
	if _, err := io.Copy(onlyWriter{to}, onlyReader{from}); err != nil {
		return err
	}
	// The other way, which may be waiting, gets its shorter time at once.
	from.f.half.Store(true)
	_ = to.SetReadDeadline(from.f.deadline())
	return ignoreGone(to.CloseWrite())
}

// ignoreGone: a side that is gone already needs no end.
func ignoreGone(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return nil
	}
	return err
}

// onlyReader and onlyWriter hide the short cuts of connections, which would
// pass the counters and deadlines by.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
