package coordinator

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/grant"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// grantLife bounds what a runner can read after the leader is gone.
	grantLife = time.Hour
	// grantKeyLife is after how long another key signs; grants of the ones before
	// stay valid until they end.
	grantKeyLife = 30 * 24 * time.Hour
	tellTimeout  = 10 * time.Second
)

// keepGrantKeys is a leader's task: it makes the key that signs grants, replaces
// it when it is old, and tells the runners.
func (c *Coordinator) keepGrantKeys(ctx context.Context) {
	for {
		changed := c.state.Changed()
		if err := c.renewGrantKey(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "grant key not made", "error", err)
		}
		for _, l := range c.links.all() {
			if err := c.tellKeys(ctx, l); err != nil && ctx.Err() == nil {
				c.logger.WarnContext(ctx, "grant keys not told", "runner", l.name, "error", err)
			}
		}
		if !waitChange(ctx, changed) {
			return
		}
	}
}

func (c *Coordinator) renewGrantKey(ctx context.Context, now time.Time) error {
	keys := c.state.Read().GrantKeys()
	if len(keys) > 0 && now.Sub(keys[0].GetCreated().AsTime()) < grantKeyLife {
		return nil
	}
	return c.addGrantKey(ctx, len(keys) == 0)
}

func (c *Coordinator) addGrantKey(ctx context.Context, first bool) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_AddGrantKey{AddGrantKey: &raftlogv1.AddGrantKey{
		First: first, Key: &raftlogv1.GrantKey{Seed: private.Seed(), Public: public}}}})
	return err
}

// signGrant allows one runner to read one tree of another for a while.
func (c *Coordinator) signGrant(root, source, audience string) (string, error) {
	keys := c.state.Read().GrantKeys()
	if len(keys) == 0 {
		return "", problem.New(connect.CodeUnavailable, problem.NotLeader, "repeat the call", "the coordinator is not ready to grant transfers yet").Retry()
	}
	token, err := grant.Sign(ed25519.NewKeyFromSeed(keys[0].GetSeed()), root, source, audience, time.Now(), grantLife)
	if err != nil {
		return "", fmt.Errorf("sign grant: %w", err)
	}
	return token, nil
}

// tellKeys tells a runner whose grants to take, unless it was told.
func (c *Coordinator) tellKeys(ctx context.Context, l *runnerLink) error {
	req := &skerryv1.SetGrantKeysRequest{}
	for _, k := range c.state.Read().GrantKeys() {
		req.Keys = append(req.Keys, k.GetPublic())
	}
	text := string(bytes.Join(req.GetKeys(), nil))
	if told := l.keysTold.Load(); len(req.GetKeys()) == 0 || (told != nil && *told == text) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	_, err := l.transfers.SetGrantKeys(ctx, connect.NewRequest(req))
	if err != nil && connect.CodeOf(err) != connect.CodeUnimplemented { // an older runner has no transfers
		return err
	}
	l.keysTold.Store(&text)
	return nil
}

// introduce tells a runner, before any call is routed to it, whose grants to
// take and which workspaces went on elsewhere while it was away.
func (c *Coordinator) introduce(ctx context.Context, l *runnerLink) error {
	if err := c.tellKeys(ctx, l); err != nil {
		return fmt.Errorf("tell grant keys: %w", err)
	}
	if err := c.fenceRunner(ctx, l); err != nil {
		return fmt.Errorf("fence workspaces: %w", err)
	}
	return nil
}
