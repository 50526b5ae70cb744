package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

const joinRetry = time.Second

// httpDoer makes a RoundTripper a Connect client that follows no redirect.
type httpDoer struct{ http.RoundTripper }

// Do implements connect.HTTPClient.
func (d httpDoer) Do(r *http.Request) (*http.Response, error) { return d.RoundTrip(r) }

// join gets this coordinator's first certificate from the cluster, by its join
// token. It tries until ctx ends or the token is refused.
func (c *Coordinator) join(ctx context.Context) error {
	text, err := os.ReadFile(c.cfg.Cluster.JoinTokenFile)
	if err != nil {
		return fmt.Errorf("cluster.join_token_file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != joinVersion {
		return errors.New("cluster.join_token_file: holds no join token; make one with: skerry cluster join-token")
	}
	request, err := c.identity.Request(c.cfg.Name)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: pki.PinnedTLS(parts[1]), DialContext: c.hooks.dialer(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for {
		res, err := c.askToJoin(ctx, transport, &skerryv1.JoinRequest{Token: token, Name: c.cfg.Name, Request: request})
		if err == nil {
			return c.identity.Install(res.GetCertificate(), res.GetAuthorities())
		}
		if p := problem.Of(err); ctx.Err() != nil || (p != nil && !p.GetRetryable()) {
			return fmt.Errorf("join the cluster: %w", err)
		}
		c.logger.WarnContext(ctx, "join the cluster", "error", err)
		pause(ctx, joinRetry)
	}
}

// askToJoin asks one coordinator after the other.
func (c *Coordinator) askToJoin(ctx context.Context, transport http.RoundTripper, req *skerryv1.JoinRequest) (*skerryv1.JoinResponse, error) {
	var errs []error
	for _, endpoint := range c.cfg.Cluster.Join {
		res, err := rpc.NewJoinServiceClient(httpDoer{transport}, endpoint).Join(ctx, connect.NewRequest(req))
		if err == nil {
			return res.Msg, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", endpoint, err))
	}
	return nil, errors.Join(errs...)
}
