package coordinator

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
)

const (
	// A revocation ends calls under way within this time.
	sweepDelay = 200 * time.Millisecond
	// What a call that was ended gets to answer so, should its caller not read.
	lastWords = 2 * time.Second
)

// callSet knows the calls and links under way by the token that they came with,
// so that none outlives its token.
type callSet struct {
	mu      sync.Mutex
	byToken map[string]map[*call]bool
}

type call struct{ end context.CancelCauseFunc }

// enter registers a call. Its context ends, with a *problem.Error as the cause,
// when the token expires or end is called for it.
func (s *callSet) enter(ctx context.Context, id identity) (_ context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	stop := func() {}
	if !id.expires.IsZero() {
		// No deadline: runners would be told it and answer that theirs has passed.
		alarm := time.AfterFunc(time.Until(id.expires), func() { end(tokenExpired()) })
		stop = func() { alarm.Stop() }
	}
	if id.tokenID == "" {
		return ctx, func() { stop(); end(nil) }
	}
	c := &call{end: end}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byToken == nil {
		s.byToken = make(map[string]map[*call]bool)
	}
	if s.byToken[id.tokenID] == nil {
		s.byToken[id.tokenID] = make(map[*call]bool)
	}
	s.byToken[id.tokenID][c] = true
	return ctx, func() { stop(); end(nil); s.leave(id.tokenID, c) }
}

func (s *callSet) leave(tokenID string, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byToken[tokenID], c)
	if len(s.byToken[tokenID]) == 0 {
		delete(s.byToken, tokenID)
	}
}

// sweep ends the calls of every token that check refuses.
func (s *callSet) sweep(check func(tokenID string) *problem.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, calls := range s.byToken {
		if refusal := check(id); refusal != nil {
			for c := range calls {
				c.end(refusal)
			}
		}
	}
}

// underShare runs next as an open call. Members, who renew their certificates by
// it, have nothing to do with how many callers there are that nobody knows.
func (c *Coordinator) underShare(next http.Handler, w http.ResponseWriter, r *http.Request) *problem.Error {
	key, who := anonymous, "callers without a certificate"
	if peer, ok := peerOf(r); ok {
		key, who = peer.Role+" "+peer.Name, "one "+peer.Role
	}
	give, refusal := c.enterShare(key, who)
	if refusal != nil {
		return refusal
	}
	defer give()
	next.ServeHTTP(w, r)
	return nil
}

// underToken runs next as a call of id that ends with the token: reads from a
// caller that sends nothing more and writes to one that takes nothing end, too.
func (c *Coordinator) underToken(next http.Handler, w http.ResponseWriter, r *http.Request, id identity) *problem.Error {
	give, refusal := c.enterShare(id.share(c.state.Read()))
	if refusal != nil {
		return refusal
	}
	defer give()
	ctx, leave := c.calls.enter(withIdentity(r.Context(), id), id)
	defer leave()
	// It may have been revoked after it was looked up and before the call was known.
	if refusal := c.refuseToken(id.tokenID); refusal != nil {
		return refusal
	}
	unblocked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(unblocked)
		if asCause(ctx) == nil {
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now())
		_ = control.SetWriteDeadline(time.Now().Add(lastWords))
	})
	next.ServeHTTP(w, r.WithContext(ctx))
	if !stop() {
		<-unblocked // it uses w, which is void after this call
	}
	return nil
}

// asCause is the typed reason for which a call's context ended, or nil.
func asCause(ctx context.Context) *problem.Error {
	if ctx.Err() == nil {
		return nil
	}
	var cause *problem.Error
	errors.As(context.Cause(ctx), &cause)
	return cause
}

// refuseToken says why a token is no good any more; "" is no token.
func (c *Coordinator) refuseToken(id string) *problem.Error {
	if id == "" {
		return nil
	}
	token := c.state.Read().Token(id)
	switch {
	case token == nil:
		return unauthenticated("the token is unknown")
	case token.GetRevoked() != nil:
		return unauthenticated("the token was revoked")
	}
	return nil
}

func tokenExpired() *problem.Error { return unauthenticated("the token has expired") }

// endCalls is a leader task: it ends the calls and links of tokens that were
// revoked, by whatever command.
func (c *Coordinator) endCalls(ctx context.Context) {
	for {
		changed := c.state.ChangedIn(state.Tokens)
		c.calls.sweep(c.refuseToken)
		if !awaitChange(ctx, changed, sweepDelay) {
			return
		}
	}
}

const (
	// keepTokens is how long a token that was revoked or has expired is still listed.
	keepTokens = 30 * 24 * time.Hour
	pruneEvery = time.Hour
	pruneBatch = 1000
)

// pruneTokens is a leader task: it forgets tokens that were useless for long, so
// that the state does not grow for ever.
func (c *Coordinator) pruneTokens(ctx context.Context) {
	for {
		before := timestamppb.New(time.Now().Add(-keepTokens))
		if len(c.state.Read().UselessTokens(before, 1)) > 0 {
			n, err := c.commitPrune(ctx, before)
			if err != nil && ctx.Err() == nil {
				c.logger.WarnContext(ctx, "prune tokens", "error", err)
			}
			if n > 0 {
				continue
			}
		}
		if !pause(ctx, pruneEvery) {
			return
		}
	}
}

// awaitChange waits for a change and then for a moment more, since changes come
// in bursts; false: ctx ended.
func awaitChange(ctx context.Context, changed <-chan struct{}, moment time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	}
	return pause(ctx, moment)
}

// pause waits; false: ctx ended before.
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

// withCause replaces what a handler says about a context that ended by why it did.
func withCause(ctx context.Context, err error) error {
	if cause := asCause(ctx); err != nil && cause != nil && connect.CodeOf(err) != connect.CodeInternal {
		return cause
	}
	return err
}
