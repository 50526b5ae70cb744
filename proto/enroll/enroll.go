// Package enroll gets a coordinator or runner its certificate with a join token,
// and keeps it fresh.
package enroll

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
	"skerry.internal/proto/wire"
)

// Config says who asks and whom.
type Config struct {
	// Endpoints of coordinators, all https, asked in turn.
	Endpoints func() []string
	Name      string
	// Hosts are names and addresses by which agents reach a coordinator.
	Hosts []string
	// Proxy gives the HTTP proxy to reach a URL by; nil: none.
	Proxy  func(*url.URL) (*url.URL, error)
	Logger *slog.Logger
	// Token gives a join token for when the certificate can't be renewed any more;
	// nil: there is none.
	Token func() (string, error)
}

const (
	callTimeout = 15 * time.Second
	// Hosts that are gone must leave time for the others within renewTimeout.
	connectTimeout = 3 * time.Second
	firstPause     = 500 * time.Millisecond
	mostPause      = 30 * time.Second
)

// ErrRefused is wrapped by a refusal that repeating does not cure.
var ErrRefused = errors.New("the coordinator refused")

// ErrToken is a text that is no join token.
var ErrToken = errors.New("no join token: want v1.<authority>.<id>.<secret>")

// pinOf is the part of a join token that names the authority's key.
func pinOf(token string) (string, error) {
	const sha256Hex = 64
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != "v1" || len(parts[1]) != sha256Hex {
		return "", ErrToken
	}
	return parts[1], nil
}

// Join gets id its first certificate. It asks until a coordinator answers, one
// refuses for good, or ctx ends.
func Join(ctx context.Context, id *identity.Identity, token string, cfg Config) error {
	pin, err := pinOf(token)
	if err != nil {
		return err
	}
	request, err := id.Request(cfg.Name)
	if err != nil {
		return err
	}
	return cfg.until(ctx, "join", func(ctx context.Context, endpoint string) error {
		client, done := cfg.client(endpoint, identity.PinnedTLS(pin))
		defer done()
		res, err := client.Join(ctx, connect.NewRequest(&skerryv1.JoinRequest{Token: token, Name: cfg.Name, Request: request, Hosts: cfg.Hosts}))
		if err != nil {
			return err
		}
		return id.Install(res.Msg.GetCertificate(), res.Msg.GetAuthorities())
	})
}

// Renew gets id its next certificate, as Join does.
func Renew(ctx context.Context, id *identity.Identity, cfg Config) error {
	request, err := id.Request(cfg.Name)
	if err != nil {
		return err
	}
	return cfg.until(ctx, "renew certificate", func(ctx context.Context, endpoint string) error {
		client, done := cfg.client(endpoint, id.ClientTLS(identity.RoleCoordinator))
		defer done()
		res, err := client.Renew(ctx, connect.NewRequest(&skerryv1.RenewRequest{Request: request, Hosts: cfg.Hosts}))
		if err != nil {
			return err
		}
		return id.Install(res.Msg.GetCertificate(), res.Msg.GetAuthorities())
	})
}

// Keep renews id's certificate in time, and at once on each wake, until ctx ends.
// Where that is refused, or the certificate has expired, it joins anew if there is
// a token; else it logs and asks again later, as an operator may mend it.
func Keep(ctx context.Context, id *identity.Identity, cfg Config, wake <-chan struct{}) {
	for ctx.Err() == nil {
		timer := time.NewTimer(max(time.Until(id.RenewAt()), firstPause))
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		if err := renewOrJoin(ctx, id, cfg); err != nil && ctx.Err() == nil {
			cfg.Logger.ErrorContext(ctx, "certificate not renewed", "expires", id.NotAfter(), "error", err)
			pause(ctx, mostPause)
		}
	}
}

// renewTimeout bounds one attempt, of which there is one after the other.
const renewTimeout = time.Minute

func renewOrJoin(ctx context.Context, id *identity.Identity, cfg Config) error {
	err := within(ctx, func(ctx context.Context) error { return Renew(ctx, id, cfg) })
	hopeless := errors.Is(err, ErrRefused) || time.Now().After(id.NotAfter())
	if err == nil || !hopeless || cfg.Token == nil {
		return err
	}
	token, terr := cfg.Token()
	if terr == nil {
		terr = within(ctx, func(ctx context.Context) error { return Join(ctx, id, token, cfg) })
	}
	if terr != nil {
		return errors.Join(err, terr)
	}
	return nil
}

func within(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	return call(ctx)
}

// until calls one endpoint after the other.
func (c Config) until(ctx context.Context, what string, call func(ctx context.Context, endpoint string) error) error {
	wait := firstPause
	for {
		var last error
		for _, endpoint := range c.Endpoints() {
			err := c.once(ctx, endpoint, call)
			if err == nil {
				return nil
			}
			last = fmt.Errorf("%s at %s: %w", what, endpoint, err)
			if refused(err) {
				return fmt.Errorf("%w: %w", ErrRefused, last)
			}
			if ctx.Err() != nil {
				return last
			}
		}
		if last == nil {
			return errors.New(what + ": no coordinator endpoint is configured")
		}
		c.Logger.WarnContext(ctx, "no coordinator answers", "retry_in", wait, "error", last)
		if !pause(ctx, wait) {
			return last
		}
		wait = min(2*wait, mostPause)
	}
}

func (c Config) once(ctx context.Context, endpoint string, call func(context.Context, string) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx, endpoint)
}

// refused tells a coordinator's verdict from a network or a cluster in trouble.
func refused(err error) bool {
	if errors.Is(err, identity.ErrPin) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeAlreadyExists,
		connect.CodeNotFound, connect.CodeUnimplemented, connect.CodeResourceExhausted:
		return connect.IsWireError(err)
	}
	return false
}

// client calls one coordinator over a connection that done ends.
func (c Config) client(endpoint string, config *tls.Config) (rpc.JoinServiceClient, func()) {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext}
	if c.Proxy != nil {
		transport.Proxy = func(r *http.Request) (*url.URL, error) { return c.Proxy(r.URL) }
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return rpc.NewJoinServiceClient(client, endpoint, wire.ClientOptions()...), transport.CloseIdleConnections
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
