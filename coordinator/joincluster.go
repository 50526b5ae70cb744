package coordinator

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"skerry.internal/proto/enroll"
)

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
	err = enroll.Join(ctx, c.identity, strings.TrimSpace(string(text)), c.enrolling(func() []string { return c.cfg.Cluster.Join }))
	if err != nil {
		return fmt.Errorf("join the cluster: %w", err)
	}
	return nil
}

func (c *Coordinator) enrolling(endpoints func() []string) enroll.Config {
	return enroll.Config{Endpoints: endpoints, Name: c.cfg.Name, Hosts: c.cfg.hosts(), Logger: c.logger}
}

// keepIdentity renews the certificate of a member of a cluster; the leader also
// does so by itself.
func (c *Coordinator) keepIdentity(ctx context.Context) {
	wake := make(chan struct{}, 1)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { c.wakeOnRotation(ctx, wake) })
	work.Go(func() { c.cutDeniedPeers(ctx) })
	enroll.Keep(ctx, c.identity, c.enrolling(c.otherEndpoints), wake)
}
