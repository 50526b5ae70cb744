package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
	"skerry.internal/proto/wire"
)

// runnerLink is one live link and the generated clients that use it.
type runnerLink struct {
	name    string
	number  uint32
	tokenID string
	// Certificate that the link was opened with; zero: a token.
	peer pki.Peer
	conn *link.ClientConn

	control    rpc.RunnerControlServiceClient
	executions rpc.ExecutionServiceClient
	files      rpc.FileServiceClient
	workspaces rpc.WorkspaceServiceClient
	transfers  rpc.TransferControlServiceClient
	// Grant keys that it was told, as one text.
	keysTold atomic.Pointer[string]
	// Branches of which it was told that they are.
	fenced sync.Map

	// As the runner last told.
	running, queued atomic.Uint32
	told            atomic.Pointer[inventory]
	// coordinators are the endpoints that the runner was told of.
	coordinators atomic.Pointer[[]string]
	// starting counts calls that may start an execution; live what a drain last saw.
	starting atomic.Int64
	live     atomic.Uint32
}

// inventory is what a runner has to offer, as it last told. It is not in the
// replicated state: the next leader is told anew.
type inventory struct {
	devices      []*skerryv1.DeviceCount
	environments []string
}

func (l *runnerLink) inventory() inventory {
	if told := l.told.Load(); told != nil {
		return *told
	}
	return inventory{}
}

// Bounds of an inventory; what is beyond is left out.
const (
	maxDevices      = 16
	maxEnvironments = 256
)

// take keeps what a runner tells of its devices and environments.
func (l *runnerLink) take(devices []*skerryv1.DeviceCount, environments []string) {
	told := &inventory{}
	for _, d := range devices[:min(len(devices), maxDevices)] {
		if len(d.GetKind()) <= maxLabelText {
			told.devices = append(told.devices, d)
		}
	}
	for _, e := range environments[:min(len(environments), maxEnvironments)] {
		if len(e) <= maxLabelText {
			told.environments = append(told.environments, e)
		}
	}
	l.told.Store(told)
}

func newRunnerLink(name string, number uint32, tokenID string, conn *link.ClientConn) *runnerLink {
	opts := wire.ClientOptions()
	return &runnerLink{
		name: name, number: number, tokenID: tokenID, conn: conn,
		control:    rpc.NewRunnerControlServiceClient(conn, link.BaseURL, opts...),
		executions: rpc.NewExecutionServiceClient(conn, link.BaseURL, opts...),
		files:      rpc.NewFileServiceClient(conn, link.BaseURL, opts...),
		workspaces: rpc.NewWorkspaceServiceClient(conn, link.BaseURL, opts...),
		transfers:  rpc.NewTransferControlServiceClient(conn, link.BaseURL, opts...),
	}
}

// ended reports that a call on l would certainly not reach the runner.
func (l *runnerLink) ended() bool {
	select {
	case <-l.conn.Done():
		return true
	default:
		return false
	}
}

// linkSet holds the live links, at most one a runner. It is the truth about who
// is reachable; the replicated state only follows it.
type linkSet struct {
	mu      sync.RWMutex
	byName  map[string]*runnerLink
	closing bool
	// Pending "did it come back?" timers by runner name.
	grace map[string]*time.Timer
	// Links and timers under way.
	work sync.WaitGroup
}

func newLinkSet() *linkSet {
	return &linkSet{byName: make(map[string]*runnerLink), grace: make(map[string]*time.Timer)}
}

// get is the live link of a runner, or nil.
func (s *linkSet) get(name string) *runnerLink {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

func (s *linkSet) count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byName)
}

// all lists the live links by name.
func (s *linkSet) all() []*runnerLink {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*runnerLink, 0, len(s.byName))
	for _, l := range s.byName {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *runnerLink) int { return cmp.Compare(a.name, b.name) })
	return out
}

// begin counts one link under way; false: the coordinator is closing.
func (s *linkSet) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.work.Add(1)
	return true
}

// add makes l the link of its runner and closes the one that it replaces.
func (s *linkSet) add(l *runnerLink) bool {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return false
	}
	old := s.byName[l.name]
	s.byName[l.name] = l
	s.stopGrace(l.name)
	s.mu.Unlock()
	if old != nil {
		_ = old.conn.Close()
	}
	return true
}

// remove forgets l unless a newer link has replaced it, and calls down when no
// link of that runner has come within grace.
func (s *linkSet) remove(l *runnerLink, grace time.Duration, down func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[l.name] != l {
		return
	}
	delete(s.byName, l.name)
	s.startGrace(l.name, grace, down)
}

// expect calls down unless a link of name comes within grace.
func (s *linkSet) expect(name string, grace time.Duration, down func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startGrace(name, grace, down)
}

// startGrace needs mu.
func (s *linkSet) startGrace(name string, grace time.Duration, down func()) {
	if s.closing {
		return
	}
	s.stopGrace(name)
	s.work.Add(1)
	s.grace[name] = time.AfterFunc(grace, func() {
		defer s.work.Done()
		down()
	})
}

// stopGrace needs mu.
func (s *linkSet) stopGrace(name string) {
	if timer := s.grace[name]; timer != nil && timer.Stop() {
		s.work.Done()
	}
	delete(s.grace, name)
}

// cutToken ends the links that were opened with a token.
func (s *linkSet) cutToken(tokenID string) {
	for _, l := range s.all() {
		if l.tokenID == tokenID {
			_ = l.conn.Close()
		}
	}
}

// cutDenied ends the links that were opened with certificates that are no good
// any more, and those of members whose certificate was not renewed in time.
func (s *linkSet) cutDenied(view state.Reader, now time.Time) {
	for _, l := range s.all() {
		if l.peer.Name == "" {
			continue
		}
		holder := view.Holder(l.peer.Role, l.peer.Name)
		if holder == nil || state.Denied(holder, timestamppb.New(l.peer.Issued)) || now.After(holder.GetExpires().AsTime()) {
			_ = l.conn.Close()
		}
	}
}

// drop ends all links and forgets who was expected: another coordinator leads.
func (s *linkSet) drop() {
	s.mu.Lock()
	for name := range s.grace {
		s.stopGrace(name)
	}
	s.mu.Unlock()
	for _, l := range s.all() {
		_ = l.conn.Close()
	}
}

// close ends all links and waits for what they started.
func (s *linkSet) close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for name := range s.grace {
		s.stopGrace(name)
	}
	s.mu.Unlock()
	for _, l := range s.all() {
		_ = l.conn.Close()
	}
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("links did not end in time"), ctx.Err())
	}
}
