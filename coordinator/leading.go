package coordinator

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

const (
	// How long a call waits for a leader to be there.
	leaderWait = 5 * time.Second
	leaderPoll = 20 * time.Millisecond
	// headerNotLeader in an answer says that nothing was done with the call.
	headerNotLeader = "Skerry-Not-Leader"
)

// local are the calls that each coordinator answers itself.
var local = map[string]bool{rpc.MemberServiceGetMemberStatsProcedure: true}

// leading lets a call pass on the leader, where nobody else can lead at the
// moment of its coming, and passes it on to the leader elsewhere. So whatever
// is decided behind it, who the caller is included, rests on all acknowledged
// changes (F46).
func (c *Coordinator) leading(next http.Handler) http.Handler {
	refuse := c.refuser()
	proxy := c.duplex(c.newLeaderProxy(refuse))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		if t := c.confirmedTenure(r.Context()); t != nil {
			ctx, cancel := t.until(r.Context())
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		switch {
		case r.Context().Err() != nil:
			refuse(w, r, asProblem(r.Context().Err()))
		case c.node.lone || forwarded(r):
			w.Header().Set(headerNotLeader, "1")
			refuse(w, r, notLeader("this coordinator does not lead"))
		case r.URL.Path == link.Path && r.Header.Get(link.HeaderDirect) != "" && c.leaderEndpoint() != "":
			// A runner that can reach the leader itself needs no relay.
			w.Header().Set(link.HeaderLeader, c.leaderEndpoint())
			http.Error(w, "another coordinator leads", http.StatusMisdirectedRequest)
		default:
			proxy.ServeHTTP(w, r)
		}
	})
}

// confirmedTenure gives the tenure that is certainly the present one, else nil.
func (c *Coordinator) confirmedTenure(ctx context.Context) *tenure {
	t := c.tenure.Load()
	if t == nil || t.gate.pass(ctx) != nil || c.tenure.Load() != t {
		return nil
	}
	return t
}

// forwarded reports whether another coordinator passed a call on.
func forwarded(r *http.Request) bool {
	peer, ok := pki.PeerOf(r.TLS)
	return ok && peer.Role == pki.RoleCoordinator && r.Header.Get(headerPeerRole) != ""
}

func notLeader(why string) *problem.Error {
	return problem.New(connect.CodeUnavailable, problem.NotLeader, "repeat the call", "%s", why).Retry()
}

// ended words the end of a call under way when leadership is lost.
func ended(path string, cause error) *problem.Error {
	if rules[path].reads || path == link.Path {
		return notLeader("leadership changed during the call").Because(cause)
	}
	return outcomeUnknown("leadership changed during the call").Because(cause)
}

// worded gives errors of calls that ended with the tenure their typed form.
func worded(ctx context.Context, path string, err error) error {
	var known *problem.Error
	if err == nil || errors.As(err, &known) || !errors.Is(context.Cause(ctx), errLeadershipLost) {
		return err
	}
	return ended(path, err)
}

// awaitLeader waits until some coordinator leads that this one can tell the
// address of, and gives that. It may be this one.
func (c *Coordinator) awaitLeader(ctx context.Context) (endpoint string, err error) {
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for {
		if endpoint := c.leaderEndpoint(); endpoint != "" {
			return endpoint, nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// leaderEndpoint is where the leader's API is; "": it is not known.
func (c *Coordinator) leaderEndpoint() string {
	if c.leads() {
		return c.cfg.Advertise
	}
	_, id := c.node.raft.LeaderWithID()
	if id == "" || id == c.node.id {
		return ""
	}
	return c.state.Read().Member(string(id)).GetEndpoint()
}
