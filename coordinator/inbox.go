package coordinator

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	defaultEntries = 50
	maxEntries     = 200
	maxWaitMS      = 30_000
	// inboxMoment is how long a waiting reader lets changes gather.
	inboxMoment = 20 * time.Millisecond
)

// inboxService is InboxService.
type inboxService struct{ c *Coordinator }

// ReadInbox implements InboxServiceHandler. To repeat it is harmless: what it
// acknowledges is what the caller says it has read.
func (s inboxService) ReadInbox(ctx context.Context, req *connect.Request[skerryv1.ReadInboxRequest]) (*connect.Response[skerryv1.ReadInboxResponse], error) {
	limit := int(req.Msg.GetLimit())
	switch {
	case limit > maxEntries:
		return nil, problem.Limit("limit", "200 entries", "read on from nextCursor")
	case req.Msg.GetWaitMs() > maxWaitMS:
		return nil, problem.Limit("waitMs", "30000 ms", "call again")
	case limit == 0:
		limit = defaultEntries
	}
	agent := caller(ctx).subject
	if err := s.acknowledge(ctx, agent, req.Msg.GetAfter()); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, time.Duration(req.Msg.GetWaitMs())*time.Millisecond)
	defer cancel()
	page, view := s.await(wait, agent, req.Msg.GetAfter(), limit+1)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := &skerryv1.ReadInboxResponse{More: len(page) > limit, Dropped: view.Inbox(agent).GetDropped()}
	out.Entries = apiEntries(page[:min(len(page), limit)])
	out.NextCursor = nextCursor(out.GetEntries(), req.Msg.GetAfter(), view.Inbox(agent))
	return connect.NewResponse(out), nil
}

// acknowledge commits that the agent has read what stands at or before after.
func (s inboxService) acknowledge(ctx context.Context, agent string, after uint64) error {
	box := s.c.state.Read().Inbox(agent)
	if after > box.GetLast() {
		return problem.Invalid("after", "use nextCursor of an earlier answer, or 0", "no entry %d yet: the newest is %d", after, box.GetLast())
	}
	if after <= box.GetAcknowledged() {
		return nil
	}
	_, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_AckInbox{AckInbox: &raftlogv1.AckInbox{Agent: agent, Through: after}}})
	return err
}

// await gives entries after a cursor as soon as there are some, or none when ctx ends.
func (s inboxService) await(ctx context.Context, agent string, after uint64, limit int) ([]*raftlogv1.InboxEntry, state.Reader) {
	for {
		changed := s.c.state.Changed()
		view := s.c.state.Read()
		if page := view.Entries(agent, after, limit); len(page) > 0 || !awaitChange(ctx, changed, inboxMoment) {
			return page, view
		}
	}
}

func nextCursor(entries []*skerryv1.InboxEntry, after uint64, box *raftlogv1.Inbox) uint64 {
	if n := len(entries); n > 0 {
		return entries[n-1].GetSeq()
	}
	return max(after, box.GetAcknowledged())
}

// WatchInbox implements InboxServiceHandler.
func (s inboxService) WatchInbox(ctx context.Context, req *connect.Request[skerryv1.WatchInboxRequest], out *connect.ServerStream[skerryv1.WatchInboxResponse]) error {
	agent, after := caller(ctx).subject, req.Msg.GetAfter()
	if box := s.c.state.Read().Inbox(agent); after > box.GetLast() {
		return problem.Invalid("after", "use nextCursor of an earlier answer, or 0", "no entry %d yet: the newest is %d", after, box.GetLast())
	}
	for first := true; ; first = false {
		page, view := s.next(ctx, agent, after, first)
		if err := ctx.Err(); err != nil {
			return err
		}
		entries := apiEntries(page)
		after = nextCursor(entries, after, nil)
		if err := out.Send(&skerryv1.WatchInboxResponse{Entries: entries, NextCursor: after, Dropped: view.Inbox(agent).GetDropped()}); err != nil {
			return err
		}
	}
}

// next gives what follows a cursor: the first time at once, though it be nothing,
// so that the caller learns that it is being served.
func (s inboxService) next(ctx context.Context, agent string, after uint64, atOnce bool) ([]*raftlogv1.InboxEntry, state.Reader) {
	if atOnce {
		view := s.c.state.Read()
		return view.Entries(agent, after, maxEntries), view
	}
	return s.await(ctx, agent, after, maxEntries)
}

func apiEntries(page []*raftlogv1.InboxEntry) []*skerryv1.InboxEntry {
	var out []*skerryv1.InboxEntry
	for _, e := range page {
		out = append(out, &skerryv1.InboxEntry{Seq: e.GetSeq(), Time: e.GetTime(), Kind: e.GetKind(), Text: e.GetText(), Id: e.GetId()})
	}
	return out
}
