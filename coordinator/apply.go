package coordinator

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// apply stamps cmd with an id and the time, commits it and gives its answer. A
// refusal by the state is a *problem.Error. When it cannot be known whether the
// command took effect the reason is OUTCOME_UNKNOWN: it is never tried again
// here, and a repeat of the same *Command is safe because it keeps its id.
func (n *raftNode) apply(ctx context.Context, cmd *raftlogv1.Command) (*raftlogv1.Answer, error) {
	now := time.Now()
	if cmd.GetId() == "" {
		cmd.Id = ids.New(ids.Command, 0, now).String()
		cmd.Time = timestamppb.New(now)
	}
	if err := n.checkVersion(cmd); err != nil {
		return nil, err
	}
	raw, err := proto.Marshal(cmd)
	if err != nil {
		return nil, problem.New(connect.CodeInternal, problem.Internal, "", "encode command").Because(err)
	}
	result, err := n.propose(ctx, raw)
	if err != nil {
		return nil, err
	}
	n.metrics.commit.Observe(time.Since(now).Seconds())
	if f := result.GetFailure(); f != nil {
		return nil, refusal(f)
	}
	return result, nil
}

type outcome struct {
	answer *raftlogv1.Answer
	err    error
}

// propose waits for the command's end or the caller's, whichever is first.
func (n *raftNode) propose(ctx context.Context, raw []byte) (*raftlogv1.Answer, error) {
	if !n.begin() {
		return nil, shuttingDown()
	}
	done := make(chan outcome, 1)
	go func() {
		defer n.pending.Done()
		future := n.raft.Apply(raw, n.applyTimeout)
		if err := future.Error(); err != nil {
			done <- outcome{err: raftProblem(err)}
			return
		}
		answer, _ := future.Response().(*raftlogv1.Answer)
		done <- outcome{answer: answer}
	}()
	select {
	case o := <-done:
		return o.answer, o.err
	case <-ctx.Done():
		return nil, outcomeUnknown("the call ended before the change was committed").Because(context.Cause(ctx))
	}
}

// raftProblem sorts Raft's errors into "did not happen" and "cannot be known".
func raftProblem(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return problem.New(connect.CodeUnavailable, problem.NotLeader, "repeat the call", "this coordinator does not lead").
			Retry().Because(err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return problem.New(connect.CodeUnavailable, problem.StoreFailed, "repeat the call; if it persists, look at the coordinator's disk",
			"the log did not take the change in time").Retry().Because(err)
	}
	return outcomeUnknown("the coordinator could not tell whether the change was committed").Because(err)
}

func outcomeUnknown(format string, args ...any) *problem.Error {
	return problem.New(connect.CodeUnknown, problem.OutcomeUnknown, "look at the state before you repeat it", format, args...)
}

func shuttingDown() *problem.Error {
	return problem.New(connect.CodeUnavailable, problem.ShuttingDown, "repeat the call", "the coordinator is stopping").Retry()
}

// refusal is the API's form of what the state refused.
func refusal(f *raftlogv1.Failure) *problem.Error {
	codes := map[string]connect.Code{
		problem.IdempotencyMismatch: connect.CodeAlreadyExists,
		problem.Fenced:              connect.CodeAborted,
		problem.ReplicaBehind:       connect.CodeFailedPrecondition,

		problem.NotFound:         connect.CodeNotFound,
		problem.NoRunner:         connect.CodeNotFound,
		problem.AlreadyExists:    connect.CodeAlreadyExists,
		problem.InvalidArgument:  connect.CodeInvalidArgument,
		problem.LimitExceeded:    connect.CodeResourceExhausted,
		problem.Unauthenticated:  connect.CodeUnauthenticated,
		problem.PermissionDenied: connect.CodePermissionDenied,
		problem.AuthorityChanged: connect.CodeAborted,
		problem.MemberRemoved:    connect.CodeFailedPrecondition,
		problem.AgentArchived:    connect.CodeFailedPrecondition,
		problem.RunnerCordoned:   connect.CodeFailedPrecondition,
		problem.RunnerInUse:      connect.CodeFailedPrecondition,
	}
	code, ok := codes[f.GetReason()]
	if !ok {
		code = connect.CodeInternal
	}
	return &problem.Error{Code: code, Reason: f.GetReason(), Field: f.GetField(), Message: f.GetMessage()}
}
