package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
	"skerry.internal/cas/reapi"
)

// reapiReport is what `cas reapi` prints when it can be asked.
type reapiReport struct {
	Address string `json:"address"`
}

func casREAPI(f *casFlags) *cobra.Command {
	o := reapi.ServerConfig{}
	c := &cobra.Command{
		Use: "reapi", Short: "Serve a remote cache by the Remote Execution API",
		Long: "Serve a remote cache by the Remote Execution API v2 (ContentAddressableStorage, ByteStream, Capabilities), until it is interrupted.\n" +
			"Clients see what clients put, and nothing else of the store. Without TLS it listens on loopback only.",
		Example: "  (umask 077; head -c 24 /dev/urandom | base64 >token)\n  runnerd cas reapi --store S --listen 127.0.0.1:8980 --token-file token", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withStore(cmd.Context(), true, func(s *cas.Store) error {
				server, err := reapi.Listen(cmd.Context(), s, o, slog.New(slog.NewTextHandler(os.Stderr, nil)))
				if err != nil {
					return err
				}
				r := reapiReport{server.Addr()}
				err = f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
					_, err := fmt.Fprintf(w, "serving grpc://%s\n", r.Address)
					return err
				})
				return errors.Join(err, serveREAPI(cmd.Context(), server))
			})
		},
	}
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "address; without TLS it must be a loopback one")
	c.Flags().StringVar(&o.TokenFile, "token-file", "", "file with the token that clients must show (required)")
	c.Flags().StringVar(&o.CertFile, "tls-cert", "", "certificate chain in PEM")
	c.Flags().StringVar(&o.KeyFile, "tls-key", "", "its key in PEM")
	c.Flags().Int64Var(&o.MaxBytes, "max-bytes", 0, "bytes to keep (default 64 GiB)")
	c.Flags().Int64Var(&o.MaxBlobs, "max-blobs", 0, "blobs to keep (default 1 million)")
	_ = c.MarkFlagRequired("token-file")
	return c
}

func serveREAPI(ctx context.Context, server *reapi.Server) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }()
	select {
	case <-ctx.Done():
		return errors.Join(server.Close(), <-ended)
	case err := <-ended:
		return errors.Join(err, server.Close())
	}
}
