package execution

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox/supervisor"
)

// live is an execution that has not ended.
type live struct {
	w      *workspace.Workspace
	ticket *workspace.Ticket
	launch Launch
	// done is closed when the execution is terminal, committed and recorded.
	done chan struct{}
	// cancelled is closed by the first cancel.
	cancelled chan struct{}
	// launched is closed when there is a supervisor and so a log.
	launched chan struct{}

	mu     sync.Mutex
	record *skerryv1.Execution
	handle *supervisor.Handle
	reason string // of the cancel

	// forwards counts the connections to its ports.
	forwards atomic.Int32
}

func newLive(w *workspace.Workspace, ticket *workspace.Ticket, record *skerryv1.Execution, l Launch) *live {
	return &live{w: w, ticket: ticket, launch: l, record: record, done: make(chan struct{}), cancelled: make(chan struct{}),
		launched: make(chan struct{})}
}

func (x *live) state() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.record.State
}

// snapshot gives a copy of the record as it is now.
func (x *live) snapshot() *skerryv1.Execution {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := proto.CloneOf(x.record)
	if r.State == skerryv1.StateQueued {
		r.QueuePosition = uint32(max(x.ticket.Position(), 0))
	}
	return r
}

// update changes the record under its lock and gives a copy.
func (x *live) update(change func(*skerryv1.Execution)) *skerryv1.Execution {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(x.record)
	return proto.CloneOf(x.record)
}

func (x *live) running(h *supervisor.Handle, since time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.handle == nil {
		x.handle = h
		close(x.launched)
	}
	if x.record.State == skerryv1.StateQueued {
		x.record.State = skerryv1.StateRunning
		x.record.Times.Started = timestamppb.New(since)
	}
}

// found is running for an execution that an earlier daemon started; when is not
// known until its end.
func (x *live) found(h *supervisor.Handle) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.handle = h
	x.record.State = skerryv1.StateRunning
	close(x.launched)
}

// requestCancel notes the first reason and gives the supervisor to tell, when
// there is one already.
func (x *live) requestCancel(reason string) *supervisor.Handle {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.cancelled:
	default:
		x.reason = reason
		close(x.cancelled)
	}
	return x.handle
}

func (x *live) cancelReason() (string, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.cancelled:
		return x.reason, true
	default:
		return "", false
	}
}

func (x *live) supervisor() *supervisor.Handle {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.handle
}
