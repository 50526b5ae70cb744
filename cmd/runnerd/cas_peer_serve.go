package main

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/runnerd/peerrpc"
)

// tlsFlags are the files of one side.
type tlsFlags struct{ cert, key, ca string }

func (t *tlsFlags) pool() (*x509.CertPool, error) {
	if t.ca == "" {
		return nil, nil
	}
	text, err := os.ReadFile(t.ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", t.ca)
	}
	return pool, nil
}

func (t *tlsFlags) certificates() ([]tls.Certificate, error) {
	if t.cert == "" && t.key == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.cert, t.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	return []tls.Certificate{pair}, nil
}

// serveFlags are those of `cas serve`.
type serveFlags struct {
	listen, name, bandwidth string
	keys                    []string
	tls                     tlsFlags
}

// serveReport is what `cas serve` prints when it can be asked.
type serveReport struct {
	URL  string `json:"url"`
	Name string `json:"name"`
}

func casServe(f *casFlags) *cobra.Command {
	o := &serveFlags{}
	c := &cobra.Command{
		Use: "serve", Short: "Let receivers pull trees that they have grants for",
		Long: "Let receivers pull trees that they have grants for, until it is interrupted. Without TLS it listens on loopback only.\n" +
			"With --tls-client-ca a receiver needs a certificate whose common name is the one in its grant.",
		Example: "  runnerd cas serve --store S --listen 127.0.0.1:7500 --grant-key grant.key.pub\n" +
			"  runnerd cas serve --store S --listen :7500 --grant-key grant.key.pub --tls-cert c.pem --tls-key k.pem --tls-client-ca ca.pem", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				return o.serve(cmd.Context(), s, func(r serveReport) error {
					return f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
						_, err := fmt.Fprintf(w, "serving %s as %q\n", r.URL, r.Name)
						return err
					})
				})
			})
		},
	}
	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:0", "address; without TLS it must be a loopback one")
	c.Flags().StringVar(&o.name, "name", "store", "this source's name, which grants must have")
	c.Flags().StringArrayVar(&o.keys, "grant-key", nil, "file of a public key that may sign grants; repeat it while a key is replaced (required)")
	c.Flags().StringVar(&o.bandwidth, "bandwidth", "", "bytes a second to send at most, such as 10MiB (default: no limit)")
	c.Flags().StringVar(&o.tls.cert, "tls-cert", "", "certificate chain in PEM")
	c.Flags().StringVar(&o.tls.key, "tls-key", "", "its key in PEM")
	c.Flags().StringVar(&o.tls.ca, "tls-client-ca", "", "require receivers' certificates, signed by one in this file")
	_ = c.MarkFlagRequired("grant-key")
	return c
}

func (o *serveFlags) serve(ctx context.Context, s *cas.Store, ready func(serveReport) error) error {
	cfg := peer.ServerConfig{Verifier: peer.Verifier{Source: o.name}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for _, path := range o.keys {
		key, err := publicKey(path)
		if err != nil {
			return err
		}
		cfg.Verifier.Keys = append(cfg.Verifier.Keys, key)
	}
	speed, err := parseBytes(o.bandwidth)
	if err != nil {
		return fmt.Errorf("--bandwidth: %w", err)
	}
	cfg.Bandwidth = peer.NewLimiter(speed)
	config, err := o.tlsConfig()
	if err != nil {
		return err
	}
	ln, err := o.open(ctx, config)
	if err != nil {
		return err
	}
	server := peer.NewServer(s, cfg)
	defer server.Close()
	return serveUntil(ctx, ln, config, server, cfg.Logger, func() error {
		scheme := "http"
		if config != nil {
			scheme = "https"
		}
		return ready(serveReport{scheme + "://" + ln.Addr().String(), o.name})
	})
}

func publicKey(path string) (ed25519.PublicKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := peer.ParsePublicKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// tlsConfig returns nil when there is to be no TLS.
func (o *serveFlags) tlsConfig() (*tls.Config, error) {
	if o.tls == (tlsFlags{}) {
		return nil, nil
	}
	certs, err := o.tls.certificates()
	if err != nil {
		return nil, err
	}
	if len(certs) == 0 {
		return nil, errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	}
	pool, err := o.tls.pool()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: certs, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if pool != nil {
		config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// open listens. A token that passes in the clear can be taken, hence loopback
// only without TLS.
func (o *serveFlags) open(ctx context.Context, config *tls.Config) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return nil, err
	}
	if addr, ok := ln.Addr().(*net.TCPAddr); config == nil && (!ok || !addr.IP.IsLoopback()) {
		return nil, errors.Join(fmt.Errorf("--listen %s is not a loopback address: give --tls-cert and --tls-key, or listen on 127.0.0.1", o.listen), ln.Close())
	}
	return ln, nil
}

// serveUntil serves until ctx ends; answers in progress are cut off then.
func serveUntil(ctx context.Context, ln net.Listener, config *tls.Config, server *peer.Server, log *slog.Logger, ready func() error) error {
	mux := http.NewServeMux()
	mux.Handle(peerrpc.NewHandler(server, receiverOf, log))
	var p http.Protocols
	p.SetHTTP2(config != nil)
	p.SetUnencryptedHTTP2(config == nil)
	h := &http.Server{
		Handler: mux, Protocols: &p, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 64, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: time.Minute},
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() {
		if config != nil {
			ended <- h.ServeTLS(ln, "", "")
		} else {
			ended <- h.Serve(ln)
		}
	}()
	err := ready()
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-ended:
			return err
		}
	}
	err = errors.Join(err, h.Close())
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// receiverOf is the name in the receiver's certificate.
func receiverOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].Subject.CommonName
}
