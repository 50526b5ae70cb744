package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Records of TLS (RFC 8446, 5.1).
const (
	recordHandshake = 22
	recordHead      = 5
	maxRecord       = 16<<10 + 2048
)

var errRecord = errors.New("no record of TLS")

// readRecord reads one record, with its head, and nothing beyond.
func readRecord(r io.Reader) ([]byte, error) {
	record := make([]byte, recordHead, 512)
	if _, err := io.ReadFull(r, record); err != nil {
		return nil, err
	}
	size := int(record[3])<<8 | int(record[4])
	if size == 0 || size > maxRecord {
		return nil, errRecord
	}
	record = append(record, make([]byte, size)...)
	_, err := io.ReadFull(r, record[recordHead:])
	return record, err
}

// readMessage gives the records that one handshake message lies in, of which the
// first was read already. Another message must not begin in them: a hello ends
// its record, and a second one is not to slip through behind the first.
func readMessage(first []byte, r io.Reader) ([]byte, error) {
	records, body := bytes.Clone(first), bytes.Clone(first[recordHead:])
	for record := first; ; {
		if record[0] != recordHandshake || len(records) > maxHello {
			return nil, errRecord
		}
		if len(body) >= 4 {
			size := 4 + (int(body[1])<<16 | int(body[2])<<8 | int(body[3]))
			if len(body) == size {
				return records, nil
			}
			if len(body) > size {
				return nil, fmt.Errorf("%w: more than one message", errRecord)
			}
		}
		var err error
		if record, err = readRecord(r); err != nil {
			return nil, err
		}
		records, body = append(records, record...), append(body, record[recordHead:]...)
	}
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
	first, err := readRecord(r)
	if err != nil {
		return "", nil, err
	}
	return readHelloFrom(first, r)
}

// readHelloFrom is readHello after its first record was read.
func readHelloFrom(first []byte, r io.Reader) (name string, read []byte, err error) {
	if read, err = readMessage(first, r); err != nil {
		return "", nil, err
	}
	conn := helloConn{r: bytes.NewReader(read)}
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
	return name, read, nil
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

// retryRandom, in the place of a ServerHello's random, makes it a
// HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// passAnswer passes the beginning of the server's answer on and says whether it
// asks for a second hello. Until then nothing more of the client goes to the
// server.
func passAnswer(client, server *flowConn) (retry bool, err error) {
	const serverHello, at = 2, recordHead + 4 + 2
	var head [at + 32]byte
	for n := 0; n < len(head); {
		m, err := server.Read(head[n:])
		if m > 0 {
			if _, err := client.Write(head[n : n+m]); err != nil {
				return false, err
			}
		}
		n += m
		if isRefusal(err) {
			return false, err
		}
		if err != nil || (n > 0 && head[0] != recordHandshake) {
			return false, nil //nolint:nilerr // reading on meets the same error
		}
	}
	return head[recordHead] == serverHello && bytes.Equal(head[at:], retryRandom), nil
}

// passSecondHello passes on what the client says up to its second hello, and
// that one if it asks for the right server as well: OpenSSL's servers go by the
// last name that they hear.
func passSecondHello(server, client *flowConn, t target) error {
	for {
		record, err := readRecord(client)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if record[0] == recordHandshake {
			var name string
			if name, record, err = readHelloFrom(record, client); err != nil {
				return deny(reasonNotTLS, "a second ClientHello was asked for, and did not come")
			}
			if r := checkName(name, t); r != nil {
				return r
			}
			_, err = server.Write(record)
			return err
		}
		if _, err := server.Write(record); err != nil { // early data, which the server throws away
			return err
		}
	}
}
