package egress

import (
	"errors"
	"io"
	"net"
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
	retry, err := passAnswer(from, to)
	if err != nil {
		x.ended(err)
		return
	}
	again := func() error { return nil }
	if retry {
		again = func() error { return passSecondHello(to, from, q.target) }
	}
	x.ended(join(from, to, again))
}

// checkHello reads the first message of TLS and gives all bytes read.
func checkHello(client bufferedConn, t target) ([]byte, *refusal) {
	first, err := client.r.Peek(1)
	if err != nil {
		return nil, deny(reasonNotTLS, "nothing came through the tunnel within %s", headTimeout)
	}
	if first[0] != recordHandshake {
		return nil, deny(reasonNotTLS, "the tunnel carries TLS only")
	}
	name, read, err := readHello(client)
	if err != nil {
		return nil, deny(reasonNotTLS, "the tunnel does not begin with a TLS ClientHello")
	}
	return read, checkName(name, t)
}

func checkName(name string, t target) *refusal {
	if name == "" {
		return nil
	}
	asked, _, err := parseHost(name)
	if err != nil || asked == "" || asked != t.host {
		return deny(reasonSNI, "the client asks for the server %.80q in a tunnel to %s", name, t)
	}
	return nil
}

// join copies both ways until both sides have ended, or one failed. What the
// client says goes through first before it is copied.
func join(client, server *flowConn, first func() error) error {
	up := make(chan error, 1)
	go func() {
		err := first()
		if err == nil {
			err = transfer(server, client)
		}
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
