// Package execution runs commands: it accepts them durably, lets one at a time
// into each workspace, starts a supervisor for each, and at the end commits the
// workspace and then the record. A restart of the daemon finds every one again.
package execution

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox/supervisor"
)

// warmShims is how many supervisors wait for work, some 3 MiB each.
const warmShims = 2

// Launch is what must be known to start an execution, also after a restart.
type Launch struct {
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env,omitempty"`
	Stdin   []byte            `json:"stdin,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Timeout time.Duration     `json:"timeout"`
	// Network is the policy's name; empty, as in records of old: none.
	Network string `json:"network,omitempty"`
	// Input, if set, makes it interactive.
	Input *supervisor.Input `json:"input,omitempty"`
}

// Launcher makes the supervisor's orders for a launch in a workspace, and says
// which sandbox tier that gives. What Spec sets up on the host for a launch
// lives until Release, across a restart of the daemon.
type Launcher interface {
	Tier() string
	// Backend names who makes the sandboxes.
	Backend() string
	// Spec may give a *RefusedError.
	Spec(ctx context.Context, id string, w *workspace.Workspace, l Launch) (supervisor.Spec, error)
	// Resume takes up again what Spec of an earlier daemon set up for an execution
	// that still runs.
	Resume(id string, w *workspace.Workspace, l Launch) error
	// Begin makes the sandbox of an execution whose supervisor runs, where that
	// does not make it itself. found: an earlier daemon started the supervisor and
	// may have done this. An error ends the execution as start_failed, unless ctx
	// ended.
	Begin(ctx context.Context, id string, w *workspace.Workspace, l Launch, h *supervisor.Handle, found bool) error
	// Release undoes it when no process of the execution is alive, or none was
	// started. It does nothing for an execution without any.
	Release(id string)
}

// RefusedError is a launch that can't be made as it was accepted, for a reason
// that the agent should know.
type RefusedError struct{ Detail string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Detail }

// Config of an Engine.
type Config struct {
	// Dir has one directory an execution.
	Dir string
	// ShimPath is the supervisor's binary.
	ShimPath string
	// Slots is how many executions run at once.
	Slots int
	// OutputBytes and OutputLines bound the text of each stream in a record.
	OutputBytes, OutputLines int
	// KeepLogs and KeepExecutions bound how long and of how many ended
	// executions the logs are kept.
	KeepLogs       time.Duration
	KeepExecutions int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Step is told of each step after which the daemon may crash. It is for tests,
	// which crash there; nil: nobody is.
	Step func(step string)
}

func (c Config) step(step string) {
	if c.Step != nil {
		c.Step(step)
	}
}

// Engine owns the executions of one runner.
type Engine struct {
	cfg        Config
	journal    *journal.Journal
	workspaces *workspace.Manager
	launcher   Launcher
	log        *slog.Logger
	metrics    *metrics
	slots      chan struct{}
	shims      *supervisor.Launcher

	// ctx ends with Close; waiting stops then, executions go on.
	ctx  context.Context //nolint:containedctx // lifetime of the goroutines below
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	number uint32 // of this runner
	lastMS int64  // of the last id given out
	live   map[string]*live
	closed bool
}

// New makes an engine that has recovered nothing yet.
func New(cfg Config, j *journal.Journal, workspaces *workspace.Manager, launcher Launcher, log *slog.Logger, reg prometheus.Registerer) (*Engine, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	e := &Engine{cfg: cfg, journal: j, workspaces: workspaces, launcher: launcher, log: log,
		slots: make(chan struct{}, cfg.Slots), shims: supervisor.NewLauncher(cfg.ShimPath, warmShims), live: map[string]*live{}}
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.metrics = newMetrics(reg, e)
	return e, nil
}

// Stop refuses new executions and ends every wait for one. Running ones go on
// under their supervisors and are found again by Recover.
func (e *Engine) Stop() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
}

// Close is Stop and waits for the engine's goroutines.
func (e *Engine) Close() {
	e.Stop()
	e.wg.Wait()
	e.shims.Close()
}

// SetNumber sets the runner's number, which goes into every new id.
func (e *Engine) SetNumber(n uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.number = n
}

// Submit accepts an execution: when it returns, the execution is durable and
// will run once, whatever happens to the caller. req identifies the request for
// idempotency. A repeated idempotency key gives the first execution.
func (e *Engine) Submit(ctx context.Context, w *workspace.Workspace, record *skerryv1.Execution, l Launch, req proto.Message) (string, error) {
	hash, err := requestHash(req)
	if err != nil {
		return "", err
	}
	if first, err := e.known(ctx, record, hash); err != nil || first != "" {
		return first, err
	}
	if err := w.Admit(ctx); err != nil {
		return "", err
	}
	launch, err := json.Marshal(l)
	if err != nil {
		return "", fmt.Errorf("accept execution: %w", err)
	}
	x, err := e.enqueue(w, record, l)
	if err != nil {
		return "", err
	}
	first, err := e.journal.Accept(context.WithoutCancel(ctx), journal.Accepted{Record: x.record, KeyHash: hash, Launch: launch})
	if err != nil || first != "" {
		e.abandon(x)
		return first, keyError(err)
	}
	e.cfg.step("accepted")
	e.wg.Go(func() { e.run(x, nil) })
	return x.record.Id, nil
}

// Known gives the execution that an earlier request with the same idempotency
// key started; "": there is none.
func (e *Engine) Known(ctx context.Context, record *skerryv1.Execution, req proto.Message) (string, error) {
	hash, err := requestHash(req)
	if err != nil {
		return "", err
	}
	return e.known(ctx, record, hash)
}

func (e *Engine) known(ctx context.Context, record *skerryv1.Execution, hash []byte) (string, error) {
	if record.IdempotencyKey == "" {
		return "", nil
	}
	first, err := e.journal.FindKey(ctx, record.Agent, record.IdempotencyKey, hash)
	if errors.Is(err, journal.ErrNotFound) {
		return "", nil
	}
	return first, keyError(err)
}

func keyError(err error) error {
	if !errors.Is(err, journal.ErrKeyReused) {
		return err
	}
	p := problem.New(connect.CodeAlreadyExists, problem.IdempotencyMismatch, "use a new key for a new request",
		"this key came first with another request").Because(err)
	p.Field = "idempotencyKey"
	return p
}

func requestHash(req proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("accept execution: %w", err)
	}
	sum := sha256.Sum256(b)
	return sum[:], nil
}

// enqueue gives the execution its id and its place. Both in one step, so that
// ids sort as the queue does, which is how Recover rebuilds the queue.
func (e *Engine) enqueue(w *workspace.Workspace, record *skerryv1.Execution, l Launch) (*live, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, shuttingDown()
	}
	ticket, err := w.Queue()
	if err != nil {
		return nil, err
	}
	e.lastMS = max(e.cfg.Now().UnixMilli(), e.lastMS+1)
	record.Id = ids.New(ids.Execution, e.number, time.UnixMilli(e.lastMS)).String()
	record.State = skerryv1.StateQueued
	record.Tier, record.Backend = e.launcher.Tier(), e.launcher.Backend()
	record.Workspace, record.Epoch = w.ID, w.Epoch()
	record.Times = &skerryv1.Times{Accepted: timestamppb.New(e.cfg.Now())}
	x := newLive(w, ticket, record, l)
	e.live[record.Id] = x
	return x, nil
}

// abandon forgets an execution that was not accepted after all.
func (e *Engine) abandon(x *live) {
	x.ticket.Release()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, x.record.Id)
}

func (e *Engine) find(id string) *live {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[id]
}

// Live tells whether the execution has not ended.
func (e *Engine) Live(id string) bool { return e.find(id) != nil }

// Load tells how many executions run and wait.
func (e *Engine) Load() (running, queued int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.live {
		if x.state() == skerryv1.StateRunning {
			running++
		} else {
			queued++
		}
	}
	return running, queued
}
