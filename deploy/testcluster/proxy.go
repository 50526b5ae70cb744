package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// proxyCommand is an HTTP proxy that knows CONNECT alone, as sites have it
// between their compute nodes and everything else.
func proxyCommand() *cobra.Command {
	var listen, metrics string
	c := &cobra.Command{Use: "connect-proxy", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return serveProxy(cmd.Context(), listen, metrics)
	}}
	c.Flags().StringVar(&listen, "listen", "", "host:port")
	c.Flags().StringVar(&metrics, "metrics", "", "host:port of /healthz")
	return c
}

func serveProxy(ctx context.Context, listen, metrics string) error {
	healthz := http.NewServeMux()
	healthz.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	servers := []*http.Server{
		{Addr: listen, Handler: http.HandlerFunc(connect), ReadHeaderTimeout: 10 * time.Second},
		{Addr: metrics, Handler: healthz, ReadHeaderTimeout: 10 * time.Second},
	}
	failed := make(chan error, len(servers))
	for _, s := range servers {
		go func() { failed <- s.ListenAndServe() }()
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	for _, s := range servers {
		err = errors.Join(err, s.Close())
	}
	return err
}

func connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	to, err := net.DialTimeout("tcp", r.Host, 5*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// What either side ends, ends both: a proxy of the plainest kind.
	var both sync.WaitGroup
	pass := func(dst io.WriteCloser, src io.Reader, other io.Closer) {
		_, _ = io.Copy(dst, src)
		_ = dst.Close()
		_ = other.Close()
	}
	both.Go(func() { pass(to, buffered, from) })
	both.Go(func() { pass(from, to, to) })
	both.Wait()
}
