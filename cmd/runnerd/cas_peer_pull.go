package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/runnerd/peerrpc"
)

// pullFlags are those of `cas pull`.
type pullFlags struct {
	from, grant, pin, bandwidth string
	progress                    bool
	tls                         tlsFlags
}

// pullReport is what `cas pull --json` prints.
type pullReport struct {
	Digest      cas.Digest `json:"digest"` // of the tree
	Pin         string     `json:"pin"`
	Directories int64      `json:"directories"` // that the store did not have
	ChunkLists  int64      `json:"chunkLists"`
	Blobs       int64      `json:"blobs"`
	Bytes       int64      `json:"bytes"` // received
	Seconds     float64    `json:"seconds"`
}

func casPull(f *casFlags) *cobra.Command {
	o := &pullFlags{}
	c := &cobra.Command{
		Use: "pull", Short: "Bring a tree from another store, sending only what is lacking",
		Long: "Bring the tree that a grant is for from a store that serves. Only what this store does not have is sent; after an\n" +
			"interruption the same command goes on where it was. Without --pin the tree stays until a collection finds no use for it.",
		Example: "  runnerd cas pull --from http://127.0.0.1:7500 --grant @grant --store S --pin project --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			token, err := grantToken(o.grant)
			if err != nil {
				return err
			}
			var r pullReport
			err = f.withStore(cmd.Context(), true, func(s *cas.Store) error {
				r, err = o.pull(cmd.Context(), s, token, cmd.ErrOrStderr())
				return err
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			return f.print(cmd.OutOrStdout(), r, r.text)
		},
	}
	c.Flags().StringVar(&o.from, "from", "", "URL of the source; http:// for loopback only (required)")
	c.Flags().StringVar(&o.grant, "grant", "", "@FILE that holds the grant, or the grant itself; default: $"+grantEnv)
	c.Flags().StringVar(&o.pin, "pin", "", "keep the tree under this name")
	c.Flags().StringVar(&o.bandwidth, "bandwidth", "", "bytes a second to receive at most, such as 10MiB (default: no limit)")
	c.Flags().BoolVar(&o.progress, "progress", false, "print progress as lines of JSON on stderr")
	c.Flags().StringVar(&o.tls.ca, "tls-ca", "", "certificates in PEM that may sign the source's (default: the system's)")
	c.Flags().StringVar(&o.tls.cert, "tls-cert", "", "this receiver's certificate in PEM")
	c.Flags().StringVar(&o.tls.key, "tls-key", "", "its key in PEM")
	_ = c.MarkFlagRequired("from")
	return c
}

func (o *pullFlags) pull(ctx context.Context, s *cas.Store, token string, progress io.Writer) (pullReport, error) {
	grant, err := peer.Inspect(token)
	if err != nil {
		return pullReport{}, err
	}
	speed, err := parseBytes(o.bandwidth)
	if err != nil {
		return pullReport{}, fmt.Errorf("--bandwidth: %w", err)
	}
	config, err := o.tlsConfig()
	if err != nil {
		return pullReport{}, err
	}
	transport := peerrpc.NewTransport(config)
	defer transport.CloseIdleConnections()
	options := peer.PullOptions{Pin: o.pin, Peer: grant.Source, Bandwidth: peer.NewLimiter(speed)}
	if o.progress {
		lines := json.NewEncoder(progress)
		options.Report = func(p peer.Progress) { _ = lines.Encode(p) }
	}
	client := peerrpc.NewClient(peerrpc.HTTPClient(transport), o.from, token)
	res, err := peer.Pull(ctx, s, client, grant.Root, options)
	return pullReport{Digest: res.Root, Pin: o.pin, Directories: res.Directories, ChunkLists: res.ChunkLists, Blobs: res.Blobs, Bytes: res.Bytes}, err
}

// tlsConfig returns nil for a source in the clear, which must be on loopback.
func (o *pullFlags) tlsConfig() (*tls.Config, error) {
	u, err := url.Parse(o.from)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("--from %.200q: give http://HOST:PORT or https://HOST:PORT", o.from)
	}
	switch u.Scheme {
	case "https":
	case "http":
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, fmt.Errorf("--from %s: the grant would pass in the clear; use https, or a loopback address", o.from)
		}
		if o.tls != (tlsFlags{}) {
			return nil, errors.New("--tls-ca, --tls-cert and --tls-key need an https:// URL")
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("--from %.200q: give http://HOST:PORT or https://HOST:PORT", o.from)
	}
	certs, err := o.tls.certificates()
	if err != nil {
		return nil, err
	}
	pool, err := o.tls.pool()
	return &tls.Config{Certificates: certs, RootCAs: pool, MinVersion: tls.VersionTLS13}, err
}

func (r pullReport) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%d directories, %d chunk lists, %d blobs new, %d bytes received, %.3f s\n",
		r.Digest, r.Directories, r.ChunkLists, r.Blobs, r.Bytes, r.Seconds)
	return err
}
