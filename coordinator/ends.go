package coordinator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/ids"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// endSettle is how long an end waits for the answer of a call that waited for
	// it: an agent is not told what it has seen.
	endSettle = time.Second
	// endsRetry is the pause before a broken stream of ends is asked for again.
	endsRetry = time.Second
	// Messages of ends that may wait, and ends that one command may carry.
	endsQueue = 64
	maxEnds   = 1024
)

// followEnds takes over the ends that the runner tells until ctx ends. It goes
// on where the state says, so that none is lost and none is taken twice.
func (c *Coordinator) followEnds(ctx context.Context, l *runnerLink) {
	for ctx.Err() == nil {
		err := c.streamEnds(ctx, l)
		if connect.CodeOf(err) == connect.CodeUnimplemented {
			c.logger.InfoContext(ctx, "runner tells no ends: it is of an older version", "runner", l.name)
			return
		}
		if ctx.Err() == nil {
			c.logger.DebugContext(ctx, "stream of ends broke", "runner", l.name, "error", err)
		}
		pause(ctx, endsRetry)
	}
}

// toldEnds is one message and when it came.
type toldEnds struct {
	at  time.Time
	msg *skerryv1.WatchEndsResponse
}

func (c *Coordinator) streamEnds(ctx context.Context, l *runnerLink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	known := c.state.Read().Runner(l.name)
	stream, err := l.control.WatchEnds(ctx, connect.NewRequest(&skerryv1.WatchEndsRequest{Log: known.GetEndLog(), After: known.GetEndSeq()}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	told := make(chan toldEnds, endsQueue)
	var committer sync.WaitGroup
	committer.Go(func() { c.commitEnds(ctx, cancel, l, told) })
	defer committer.Wait()
	defer cancel()
	for stream.Receive() {
		select {
		case told <- toldEnds{time.Now(), stream.Msg()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return stream.Err()
}

// commitEnds lets ends settle and commits those that came about together. When
// it cannot be known whether a command was applied, it is repeated as it is.
func (c *Coordinator) commitEnds(ctx context.Context, stop func(), l *runnerLink, told <-chan toldEnds) {
	defer stop()
	for {
		var first toldEnds
		select {
		case first = <-told:
		case <-ctx.Done():
			return
		}
		if len(first.msg.GetEnds()) > 0 && !pause(ctx, time.Until(first.at.Add(endSettle))) {
			return
		}
		op := c.gatherEnds(l, first, told)
		if len(op.GetEnds()) == 0 {
			continue
		}
		cmd := &raftlogv1.Command{Op: &raftlogv1.Command_RecordEnds{RecordEnds: op}}
		for {
			_, err := c.node.apply(ctx, cmd)
			if err == nil {
				break
			}
			c.logger.WarnContext(ctx, "commit ends", "runner", l.name, "ends", len(op.GetEnds()), "error", err)
			if !pause(ctx, endsRetry) {
				return
			}
		}
	}
}

// gatherEnds adds to first what came soon after.
func (c *Coordinator) gatherEnds(l *runnerLink, first toldEnds, told <-chan toldEnds) *raftlogv1.RecordEnds {
	op := &raftlogv1.RecordEnds{Runner: l.name, Log: clipText(first.msg.GetLog(), 64)}
	c.addEnds(op, l, first.msg)
	for len(op.GetEnds()) < maxEnds {
		select {
		case next := <-told:
			c.addEnds(op, l, next.msg)
			if time.Since(next.at) < endSettle/2 {
				return op
			}
		default:
			return op
		}
	}
	return op
}

// addEnds keeps what this runner may tell of: executions that carry its number.
// That the agent works there is for the state to check.
func (c *Coordinator) addEnds(op *raftlogv1.RecordEnds, l *runnerLink, msg *skerryv1.WatchEndsResponse) {
	for _, end := range msg.GetEnds() {
		out := &raftlogv1.End{Seq: end.GetSeq()}
		if id, err := ids.Parse(ids.Execution, end.GetExecutionId()); err == nil && id.Runner() == l.number && namePattern.MatchString(end.GetAgent()) {
			out.ExecutionId, out.Agent, out.State = end.GetExecutionId(), end.GetAgent(), clipText(end.GetState(), 32)
			out.Text, out.Seen = endText(end), c.seen.has(end.GetExecutionId())
		}
		op.Ends = append(op.Ends, out)
		op.Through = max(op.GetThrough(), end.GetSeq())
	}
}

// endText is what an inbox says of an end.
func endText(end *skerryv1.ExecutionEnd) string {
	how := end.GetVerdict()
	if end.ExitCode != nil {
		how = fmt.Sprintf("exit code %d", end.GetExitCode())
	}
	return clipText(fmt.Sprintf("execution %s (%s): %s", end.GetState(), how, end.GetCommand()), 512)
}

// seenEnds remembers executions whose end an agent was answered. It forgets old
// ones, and all when another coordinator leads: then an agent may be told of an
// end that it saw just before.
type seenEnds struct {
	mu       sync.Mutex
	new, old map[string]bool
}

const seenEach = 16 << 10

func (s *seenEnds) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.new == nil || len(s.new) >= seenEach {
		s.new, s.old = make(map[string]bool), s.new
	}
	s.new[id] = true
}

func (s *seenEnds) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.new[id] || s.old[id]
}

// saw notes that a call answers the end of an execution to the agent that owns it.
func (c *Coordinator) saw(ctx context.Context, e *skerryv1.Execution) {
	if e.GetAgent() == caller(ctx).subject && skerryv1.Terminal(e.GetState()) {
		c.seen.add(e.GetId())
	}
}
