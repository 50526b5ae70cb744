package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// Heads that one command may carry.
	maxHeads   = 512
	headsRetry = time.Second
	// Bytes of a workspace's detail that are kept.
	maxDetail = 1024
	// Bytes of a digest, an id or a state that are kept; true ones are shorter.
	maxDigest = 128
)

// followHeads consumes the runner's stream of workspace states and commits what
// changed. It returns when the stream ends, with the reason.
func (c *Coordinator) followHeads(ctx context.Context, l *runnerLink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.control.WatchWorkspaces(ctx, connect.NewRequest(&skerryv1.WatchWorkspacesRequest{}))
	if err != nil {
		return fmt.Errorf("watch workspaces: %w", err)
	}
	defer func() { _ = stream.Close() }()
	feed := &headsFeed{c: c, runner: l.name, pending: make(map[string]*raftlogv1.Head), wake: make(chan struct{}, 1)}
	var done sync.WaitGroup
	done.Go(func() { feed.run(ctx) })
	defer done.Wait()
	defer cancel()
	for stream.Receive() {
		msg := stream.Msg()
		l.running.Store(msg.GetRunning())
		l.queued.Store(msg.GetQueued())
		if len(msg.GetDevices())+len(msg.GetEnvironments()) > 0 {
			l.take(msg.GetDevices(), msg.GetEnvironments())
		}
		feed.offer(msg.GetWorkspaces())
	}
	if err := stream.Err(); err != nil {
		return fmt.Errorf("watch workspaces: %w", err)
	}
	return nil
}

// headsFeed gathers changed heads while the previous batch is being committed,
// so that a busy runner costs few log entries.
type headsFeed struct {
	c      *Coordinator
	runner string
	wake   chan struct{}

	mu sync.Mutex
	// Latest news by workspace id.
	pending map[string]*raftlogv1.Head
}

// offer keeps what is news against the state; it never blocks.
func (f *headsFeed) offer(list []*skerryv1.Workspace) {
	view := f.c.state.Read()
	f.mu.Lock()
	for _, ws := range list {
		known := view.Workspace(ws.GetId())
		head := raftHead(ws)
		if known != nil && f.isNews(view, known, head) {
			f.pending[ws.GetId()] = head
		}
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// isNews also takes what changes a branch that the runner keeps.
func (f *headsFeed) isNews(view state.Reader, known *raftlogv1.Workspace, head *raftlogv1.Head) bool {
	if known.GetRunner() == f.runner {
		return newsworthy(known, head)
	}
	for _, b := range view.BranchesOfWorkspace(known.GetId()) {
		if b.GetRunner() == f.runner && b.GetEpoch() == head.GetEpoch() {
			return state.NewsOfBranch(b, head)
		}
	}
	return false
}

// newsworthy leaves out what says only that a workspace without commits is fine.
func newsworthy(known *raftlogv1.Workspace, head *raftlogv1.Head) bool {
	if known.GetHead() == nil && head.GetSeq() == 0 && head.GetState() == skerryv1.WorkspaceReady {
		return false
	}
	return state.Advances(known, head)
}

// headsDelay is how far the replicated heads may be behind the runners'.
const headsDelay = 100 * time.Millisecond

func (f *headsFeed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		// News comes in bursts; the log need not have each step.
		select {
		case <-ctx.Done():
			return
		case <-time.After(headsDelay):
		}
		for batch := f.take(); len(batch) > 0; batch = f.take() {
			if f.commit(ctx, batch) != nil {
				return
			}
		}
	}
}

// commit repeats the same command until it is known to be applied or ctx ends.
func (f *headsFeed) commit(ctx context.Context, batch []*raftlogv1.Head) error {
	cmd := &raftlogv1.Command{Op: &raftlogv1.Command_UpdateHeads{UpdateHeads: &raftlogv1.UpdateHeads{Runner: f.runner, Heads: batch}}}
	for {
		_, err := f.c.node.apply(ctx, cmd)
		if err == nil {
			return nil
		}
		f.c.logger.WarnContext(ctx, "commit heads", "runner", f.runner, "heads", len(batch), "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(headsRetry):
		}
	}
}

func (f *headsFeed) take() []*raftlogv1.Head {
	f.mu.Lock()
	defer f.mu.Unlock()
	var batch []*raftlogv1.Head
	for id, head := range f.pending {
		if len(batch) == maxHeads {
			break
		}
		batch = append(batch, head)
		delete(f.pending, id)
	}
	return batch
}

// raftHead is what the replicated state keeps of a runner's word, whatever its length.
func raftHead(ws *skerryv1.Workspace) *raftlogv1.Head {
	snap := ws.GetHead()
	return &raftlogv1.Head{WorkspaceId: clipText(ws.GetId(), maxDigest), Epoch: ws.GetEpoch(), Seq: snap.GetSeq(), Digest: clipText(snap.GetDigest(), maxDigest),
		Parent: clipText(snap.GetParent(), maxDigest), Commit: clipText(snap.GetCommit(), maxDigest), State: clipText(ws.GetState(), maxDigest), Detail: clipText(ws.GetDetail(), maxDetail)}
}

// clipText cuts at a character's edge.
func clipText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
