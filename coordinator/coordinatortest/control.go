package coordinatortest

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// End records the end of an execution, known or not, and tells it.
func (r *Runner) End(agent, id, state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ex := r.executions[id]; ex != nil {
		ex.State = state
	}
	code := int32(0)
	r.ends = append(r.ends, &skerryv1.ExecutionEnd{Seq: uint64(len(r.ends) + 1), ExecutionId: id, Agent: agent, State: state,
		Verdict: skerryv1.VerdictExited, ExitCode: &code, Command: "true"})
	close(r.moreEnds)
	r.moreEnds = make(chan struct{})
}

// LoseEnds makes the runner begin a new log of ends.
func (r *Runner) LoseEnds(log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends, r.endLog = nil, log
}

// SetLive sets how many executions have not ended.
func (r *Runner) SetLive(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = n
}

// SetState changes an execution.
func (r *Runner) SetState(id, state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.executions[id].State = state
}

// Cancelled are the reasons of each order to cancel everything.
func (r *Runner) Cancelled() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.cancelled...)
}

func (r *Runner) endsAfter(log string, after uint64) (string, []*skerryv1.ExecutionEnd, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if log != r.endLog {
		after = 0
	}
	var out []*skerryv1.ExecutionEnd
	for _, end := range r.ends {
		if end.GetSeq() > after {
			out = append(out, end)
		}
	}
	return r.endLog, out, r.moreEnds
}

// WatchEnds implements RunnerControlServiceHandler.
func (c control) WatchEnds(ctx context.Context, req *connect.Request[skerryv1.WatchEndsRequest], out *connect.ServerStream[skerryv1.WatchEndsResponse]) error {
	asked, after := req.Msg.GetLog(), req.Msg.GetAfter()
	for {
		log, ends, more := c.endsAfter(asked, after)
		if err := out.Send(&skerryv1.WatchEndsResponse{Log: log, Ends: ends}); err != nil {
			return err
		}
		if n := len(ends); n > 0 {
			after = ends[n-1].GetSeq()
		}
		asked = log
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.stop:
			return nil
		}
	}
}

// FindExecution implements RunnerControlServiceHandler.
func (c control) FindExecution(_ context.Context, req *connect.Request[skerryv1.FindExecutionRequest]) (*connect.Response[skerryv1.FindExecutionResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ex := c.executions[req.Msg.GetExecutionId()]
	if ex == nil {
		return nil, problem.Connect(problem.Missing("executionId", "no such execution"))
	}
	return connect.NewResponse(&skerryv1.FindExecutionResponse{Agent: ex.GetAgent(), Workspace: ex.GetWorkspace()}), nil
}

// CountLive implements RunnerControlServiceHandler.
func (c control) CountLive(_ context.Context, req *connect.Request[skerryv1.CountLiveRequest]) (*connect.Response[skerryv1.CountLiveResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.Msg.GetCancel() {
		c.cancelled = append(c.cancelled, req.Msg.GetReason())
	}
	return connect.NewResponse(&skerryv1.CountLiveResponse{Live: c.live}), nil
}
