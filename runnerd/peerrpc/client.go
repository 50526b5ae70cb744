package peerrpc

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas/peer"
	peerv1 "skerry.internal/proto/skerry/peer/v1"
	"skerry.internal/proto/skerry/peer/v1/peerv1connect"
)

// Client asks a source over HTTP/2. It implements peer.Source.
type Client struct {
	rpc   peerv1connect.PeerServiceClient
	token func() string
}

// NewClient returns a client that shows token. url is where the source's
// handler is mounted, without its path; the source may stand behind a relay.
func NewClient(doer connect.HTTPClient, url, token string) *Client {
	return NewRenewingClient(doer, url, func() string { return token })
}

// NewRenewingClient asks for the token at each call, so that a renewed grant is
// used at once.
func NewRenewingClient(doer connect.HTTPClient, url string, token func() string) *Client {
	return &Client{peerv1connect.NewPeerServiceClient(doer, url,
		connect.WithReadMaxBytes(maxResponse), connect.WithAcceptCompression("gzip", nil, nil)), token}
}

// NewTransport returns an HTTP/2 transport with windows for links of some
// delay. Without TLS it speaks HTTP/2 in the clear: for loopback alone. The
// caller closes its idle connections.
func NewTransport(config *tls.Config) *http.Transport {
	var p http.Protocols
	p.SetHTTP2(config != nil)
	p.SetUnencryptedHTTP2(config == nil)
	return &http.Transport{
		Protocols: &p, TLSClientConfig: config, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize: 256 << 10, MaxReceiveBufferPerStream: 4<<20 - 1, MaxReceiveBufferPerConnection: 16<<20 - 1,
			SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: 30 * time.Second,
		},
	}
}

// HTTPClient returns a client on transport that follows no redirection, which
// would take the token elsewhere.
func HTTPClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Fetch implements peer.Source.
func (c *Client) Fetch(ctx context.Context, b peer.Batch) (peer.Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := c.rpc.Fetch(ctx, connect.NewRequest(&peerv1.FetchRequest{
		Grant: c.token(), Directories: join(b.Directories), ChunkLists: join(b.ChunkLists), Blobs: join(b.Blobs)}))
	if err != nil {
		cancel()
		return nil, domainError(err)
	}
	return &clientStream{s, cancel}, nil
}

type clientStream struct {
	rpc    *connect.ServerStreamForClient[peerv1.FetchResponse]
	cancel context.CancelFunc
}

// Next implements peer.Stream.
func (s *clientStream) Next() (peer.Slice, error) {
	if !s.rpc.Receive() {
		if err := s.rpc.Err(); err != nil {
			return peer.Slice{}, domainError(err)
		}
		return peer.Slice{}, io.EOF
	}
	m := s.rpc.Msg()
	lacking, err := digestsOf("lacking", m.GetLacking())
	if err != nil {
		return peer.Slice{}, err
	}
	damaged, err := digestsOf("damaged", m.GetDamaged())
	if err != nil {
		return peer.Slice{}, err
	}
	out := peer.Slice{Records: m.GetRecords(), Lacking: lacking, Damaged: damaged}
	if p := m.GetPlan(); p != nil {
		out.Plan = &peer.Totals{Objects: p.GetObjects(), Bytes: p.GetBytes()}
	}
	if d := m.GetDone(); d != nil {
		out.Done = &peer.Totals{Objects: d.GetObjects(), Bytes: d.GetBytes()}
	}
	return out, nil
}

// Close implements peer.Stream. A stream that is not at its end is reset,
// rather than read to it.
func (s *clientStream) Close() error {
	s.cancel()
	return s.rpc.Close()
}
