package runnerd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"skerry.internal/config"
	"skerry.internal/proto/identity"
	"skerry.internal/runnerd/peerrpc"
	"skerry.internal/runnerd/transfer"
)

// Peer says where other runners read this one's store directly. They and it
// show certificates of the cluster.
type Peer struct {
	// Listen is host:port; empty: they go by a coordinator alone.
	Listen string `yaml:"listen"`
	// Advertise is host:port as others reach it; empty: as Listen.
	Advertise string `yaml:"advertise"`
}

// Transfers bounds what other workspaces and runners may cost this one.
type Transfers struct {
	// MaxRunning is how many transfers into this runner run at once; more wait.
	MaxRunning int `yaml:"max_running"`
	// Bandwidth in bytes a second, each way; 0: no bound.
	Bandwidth config.Bytes `yaml:"bandwidth"`
}

const peerShutdown = 2 * time.Second

// advertised is what others are told; empty: nothing.
func (p Peer) advertised() string {
	if p.Listen == "" || p.Advertise != "" {
		return p.Advertise
	}
	return p.Listen
}

func (p Peer) validate() error {
	if p.Listen == "" {
		if p.Advertise != "" {
			return &config.FieldError{Field: "peer.advertise", Problem: "is set, but nothing listens", Remedy: "set peer.listen too"}
		}
		return nil
	}
	host, _, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return &config.FieldError{Field: "peer.listen", Problem: "is no host:port", Remedy: "write for example 10.0.0.7:7430"}
	}
	there, port, err := net.SplitHostPort(p.advertised())
	if err != nil || port == "0" {
		return &config.FieldError{Field: "peer.advertise", Problem: "is no host:port", Remedy: "write the address at which other runners reach this one"}
	}
	ip := net.ParseIP(there)
	if there == "" || (ip != nil && ip.IsUnspecified()) {
		return &config.FieldError{Field: "peer.advertise", Problem: fmt.Sprintf("would tell others to dial %q", p.advertised()),
			Remedy: "write the address at which other runners reach this one"}
	}
	if isLoopback(there) && !isLoopback(host) {
		return &config.FieldError{Field: "peer.advertise", Problem: "is a loopback address, which means another host at each runner",
			Remedy: "write the address at which other runners reach this one"}
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (t Transfers) validate() error {
	if t.MaxRunning <= 0 {
		return &config.FieldError{Field: "transfers.max_running", Problem: "must be over 0", Remedy: "use the default, 4"}
	}
	return nil
}

// openTransfers makes the manager of transfers and, where configured, serves
// other runners.
func (d *Daemon) openTransfers(ctx context.Context) error {
	d.transfers = transfer.New(transfer.Config{Name: d.cfg.Name, MaxRunning: d.cfg.Transfers.MaxRunning, Bandwidth: int64(d.cfg.Transfers.Bandwidth),
		Advertise: d.cfg.Peer.advertised(), Direct: d.peerClient, Relay: d.relay.way}, d.store, d.journal, d.workspaces, d.deps.Logger, d.deps.Metrics)
	if err := d.transfers.Start(ctx); err != nil {
		return err
	}
	if d.cfg.Peer.Listen == "" {
		return nil
	}
	ln, err := net.Listen("tcp", d.cfg.Peer.Listen)
	if err != nil {
		return fmt.Errorf("peer.listen: %w", err)
	}
	d.peers = d.servePeers(ln)
	return nil
}

// peerClient is what other runners are dialled with; nil without a certificate.
func (d *Daemon) peerClient() *tls.Config {
	if !d.identity.Ready() {
		return nil
	}
	return d.identity.ClientTLS(identity.RoleRunner)
}

// servePeers lets other runners read what they have a grant for.
func (d *Daemon) servePeers(ln net.Listener) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(d.transfers.PeerHandler(func(r *http.Request) string {
		p, ok := identity.PeerOf(r.TLS)
		if !ok { // the configuration below lets nobody in without
			return "(nobody)"
		}
		return p.Name
	}))
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: &protocols, TLSConfig: d.identity.ServerMutualTLS(identity.RoleRunner),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(d.deps.Logger.Handler(), slog.LevelDebug)}
	go func() {
		if err := server.ServeTLS(ln, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.deps.Logger.Error("other runners are not served any more", "err", err)
		}
	}()
	return server
}

func (d *Daemon) closeTransfers() error {
	var err error
	if d.peers != nil {
		ctx, cancel := context.WithTimeout(context.Background(), peerShutdown)
		defer cancel()
		if err = d.peers.Shutdown(ctx); err != nil {
			err = d.peers.Close()
		}
	}
	if d.transfers != nil {
		d.transfers.Close()
	}
	return err
}

// relayWay is the coordinator that this runner is linked to, as a way to others.
type relayWay struct {
	mu        sync.Mutex
	endpoint  string
	token     func() (string, error) // nil: the certificate says who calls
	transport *http.Transport
}

var errNoLink = errors.New("no coordinator is linked")

// prepare sets what calls are made with, before the first link.
func (w *relayWay) prepare(trust *tls.Config, token func() (string, error), proxy func(*url.URL) (*url.URL, error)) {
	transport := peerrpc.NewTransport(trust)
	transport.Protocols.SetUnencryptedHTTP2(true) // for a coordinator on loopback
	if proxy != nil {
		transport.Proxy = func(r *http.Request) (*url.URL, error) { return proxy(r.URL) }
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token, w.transport = token, transport
}

func (w *relayWay) onLink(endpoint string, up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.endpoint = ""; up {
		w.endpoint = endpoint
	}
}

func (w *relayWay) way() (transfer.Relay, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.endpoint == "" || w.transport == nil {
		return transfer.Relay{}, errNoLink
	}
	return transfer.Relay{URL: w.endpoint, Client: bearerClient{peerrpc.HTTPClient(w.transport), w.token}}, nil
}

func (w *relayWay) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
}

// bearerClient adds this runner's token, where it has one.
type bearerClient struct {
	next  *http.Client
	token func() (string, error)
}

// Do implements connect.HTTPClient.
func (c bearerClient) Do(r *http.Request) (*http.Response, error) {
	if c.token != nil {
		token, err := c.token()
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return c.next.Do(r)
}
