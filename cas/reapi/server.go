package reapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"skerry.internal/cas"
)

// ServerConfig says where and to whom a Server listens.
type ServerConfig struct {
	Config
	// Listen is an address; without TLS it must be a loopback one.
	Listen string
	// TokenFile has the token that every client must show.
	TokenFile string
	// CertFile and KeyFile are the server's certificate chain and key in PEM.
	CertFile, KeyFile string
}

// Server is a Service that listens.
type Server struct {
	svc    *Service
	grpc   *grpc.Server
	listen net.Listener
}

// Listen opens the cache of the store and begins to listen. The owner calls
// Serve and then Close.
func Listen(ctx context.Context, store *cas.Store, cfg ServerConfig, log *slog.Logger) (*Server, error) {
	token, err := ReadToken(cfg.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("token_file: %w", err)
	}
	options, err := token.ServerOptions()
	if err != nil {
		return nil, err
	}
	options = append(options, grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * time.Minute, Time: time.Minute, Timeout: 20 * time.Second}))
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})))
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if addr, ok := ln.Addr().(*net.TCPAddr); cfg.CertFile == "" && (!ok || !addr.IP.IsLoopback()) {
		return nil, errors.Join(fmt.Errorf("listen: %s is not a loopback address, and the token would pass in the clear: give cert_file and key_file", cfg.Listen), ln.Close())
	}
	svc, err := New(ctx, store, cfg.Config, log)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	s := &Server{svc: svc, grpc: grpc.NewServer(options...), listen: ln}
	svc.Register(s.grpc)
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() string { return s.listen.Addr().String() }

// Serve answers calls until Close.
func (s *Server) Serve() error { return s.grpc.Serve(s.listen) }

// Close ends all calls and makes durable what was put.
func (s *Server) Close() error {
	s.grpc.Stop()
	return s.svc.Close()
}
