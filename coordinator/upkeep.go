package coordinator

import (
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// How often certificates and links are looked at though nothing has changed,
	// and how soon after a change.
	upkeepEvery = 10 * time.Second
	upkeepDelay = 100 * time.Millisecond
	// Runners that are asked for their next certificate at once.
	refreshAtOnce  = 32
	refreshTimeout = 5 * time.Second
)

// keepAuthority is a leader's task: it renews the leader's own certificate, takes
// a rotation on once all have followed, and ends links of members that may not
// have one any more.
func (c *Coordinator) keepAuthority(ctx context.Context) {
	for {
		changed := c.state.ChangedIn(state.Fleet)
		if err := c.renewOwn(ctx); err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "own certificate not renewed", "error", err)
		}
		if err := c.nextStep(ctx, false); err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "rotation of the authority", "error", err)
		}
		c.links.cutDenied(c.state.Read(), time.Now())
		c.refreshRunners(ctx)
		c.tellRunners(ctx)
		if !waitChange(ctx, changed) {
			return
		}
	}
}

// waitChange waits for changes to come together, or a while; false: ctx ended.
func waitChange(ctx context.Context, changed <-chan struct{}) bool {
	timer := time.NewTimer(upkeepEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-changed:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(upkeepDelay):
		return true
	}
}

// refreshRunners asks linked runners that do not know of the authority's last
// change for their next certificate.
func (c *Coordinator) refreshRunners(ctx context.Context) {
	view := c.state.Read()
	generation := view.Authority().GetGeneration()
	var asked sync.WaitGroup
	defer asked.Wait()
	n := 0
	for _, l := range c.links.all() {
		if l.peer.Name == "" || view.Holder(l.peer.Role, l.peer.Name).GetGeneration() >= generation {
			continue
		}
		if n++; n > refreshAtOnce {
			return // the others with the change that these make
		}
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
			defer cancel()
			if _, err := l.control.RefreshCertificate(ctx, connect.NewRequest(&skerryv1.RefreshCertificateRequest{})); err != nil {
				c.logger.InfoContext(ctx, "runner not told of the new authority", "runner", l.name, "error", err)
			}
		})
	}
}

// tellRunners tells linked runners where the coordinators are now, so that they
// find the cluster though all that they know are replaced while a link lasts.
func (c *Coordinator) tellRunners(ctx context.Context) {
	endpoints := c.endpoints()
	var told sync.WaitGroup
	defer told.Wait()
	n := 0
	for _, l := range c.links.all() {
		known := l.coordinators.Load()
		if known == nil || slices.Equal(*known, endpoints) || len(endpoints) == 0 {
			continue
		}
		if n++; n > refreshAtOnce {
			return // the others at the next look
		}
		told.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
			defer cancel()
			_, err := l.control.TellCoordinators(ctx, connect.NewRequest(&skerryv1.TellCoordinatorsRequest{Endpoints: endpoints}))
			switch {
			case err == nil, connect.CodeOf(err) == connect.CodeUnimplemented: // an older runner learns it from its next link
				l.coordinators.Store(&endpoints)
			default:
				c.logger.InfoContext(ctx, "runner not told of the coordinators", "runner", l.name, "error", err)
			}
		})
	}
}

// wakeOnRotation tells the keeper of a follower's certificate of changes of the
// authority, of which the replicated state tells it.
func (c *Coordinator) wakeOnRotation(ctx context.Context, wake chan<- struct{}) {
	for {
		changed := c.state.ChangedIn(state.Fleet)
		if holder := c.state.Read().Holder(pki.RoleCoordinator, c.name()); holder != nil && c.renewalDue(time.Now()) {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
		if !waitChange(ctx, changed) {
			return
		}
	}
}

// cutDeniedPeers ends Raft's connections with coordinators that were denied since
// they were opened. Each member does so by itself.
func (c *Coordinator) cutDeniedPeers(ctx context.Context) {
	for {
		changed := c.state.Changed()
		if c.node.stream != nil {
			c.node.stream.cut()
		}
		if !waitChange(ctx, changed) {
			return
		}
	}
}
