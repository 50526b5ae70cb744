package transfer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/peerrpc"
)

// directTimeout bounds the attempt to reach a source directly.
const directTimeout = 3 * time.Second

// errNoRoute: neither the source nor a coordinator can be reached now.
var errNoRoute = errors.New("no way to the source now")

// pull brings a tree into the store: from another runner directly where that
// works, else through the coordinator. source gives whom to ask, with the grant
// of the moment.
func (m *Manager) pull(ctx context.Context, root cas.Digest, source func() *skerryv1.PullSource, o peer.PullOptions) (route string, n int64, err error) {
	from := source()
	o.Peer, o.Bandwidth, o.Logger = from.GetRunner(), m.in, m.log
	grant := func() string { return source().GetGrant() }
	if transport := m.direct(ctx, from); transport != nil {
		defer transport.CloseIdleConnections()
		client := peerrpc.NewRenewingClient(peerrpc.HTTPClient(transport), "https://"+from.GetPeer().GetAddress(), grant)
		if n, err = m.pullBy(ctx, skerryv1.RouteDirect, client, root, o); err == nil || !broken(err) || ctx.Err() != nil {
			return skerryv1.RouteDirect, n, err
		}
		m.log.Info("direct transfer broke, the coordinator relays", "source", from.GetRunner(), "err", err)
	}
	if m.cfg.Relay == nil {
		return "", 0, errNoRoute
	}
	relay, err := m.cfg.Relay()
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errNoRoute, err)
	}
	client := peerrpc.NewRenewingClient(toSource{relay.Client, from.GetRunner()}, relay.URL, grant)
	n, err = m.pullBy(ctx, skerryv1.RouteRelay, client, root, o)
	return skerryv1.RouteRelay, n, err
}

func (m *Manager) pullBy(ctx context.Context, route string, source peer.Source, root cas.Digest, o peer.PullOptions) (int64, error) {
	res, err := peer.Pull(ctx, m.store, source, root, o)
	m.metrics.bytes.WithLabelValues(route).Add(float64(res.Bytes))
	return res.Bytes, err
}

// broken reports whether err is of the way, not of what was asked for.
func broken(err error) bool {
	var e *peer.Error
	if errors.As(err, &e) {
		return e.Retryable()
	}
	var wire *connect.Error
	return errors.As(err, &wire) || isNet(err)
}

func isNet(err error) bool {
	var n net.Error
	return errors.As(err, &n)
}

// toSource tells the coordinator whom to ask.
type toSource struct {
	next   connect.HTTPClient
	source string
}

// Do implements connect.HTTPClient.
func (t toSource) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set(skerryv1.HeaderSource, t.source)
	return t.next.Do(r)
}

// direct gives a transport to a source that can be reached, else nil.
func (m *Manager) direct(ctx context.Context, from *skerryv1.PullSource) *http.Transport {
	address := from.GetPeer().GetAddress()
	if m.cfg.Direct == nil || !m.usable(from.GetPeer()) {
		return nil
	}
	config := m.cfg.Direct()
	if config == nil {
		return nil
	}
	config = expect(config, from.GetRunner())
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	probe := config.Clone()
	probe.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: probe}).DialContext(ctx, "tcp", address)
	if err != nil {
		m.log.Debug("source cannot be reached directly", "source", from.GetRunner(), "address", address, "err", err)
		return nil
	}
	_ = conn.Close()
	return peerrpc.NewTransport(config)
}

// usable refuses addresses that mean another host here than there (F48).
func (m *Manager) usable(p *skerryv1.PeerAddress) bool {
	host, _, err := net.SplitHostPort(p.GetAddress())
	if err != nil {
		return false
	}
	if _, err := url.Parse("https://" + p.GetAddress()); err != nil {
		return false
	}
	if ip := net.ParseIP(host); host == "localhost" || (ip != nil && (ip.IsLoopback() || ip.IsUnspecified())) {
		return p.GetHost() != "" && p.GetHost() == m.host
	}
	return true
}

// expect also insists on the name in the source's certificate.
func expect(config *tls.Config, name string) *tls.Config {
	config = config.Clone()
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if verify != nil {
			if err := verify(state); err != nil {
				return err
			}
		}
		if p, ok := identity.PeerOf(&state); !ok || p.Name != name {
			return fmt.Errorf("at the address of runner %q answers %q", name, p.Name)
		}
		return nil
	}
	return config
}
