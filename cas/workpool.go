package cas

import (
	"context"
	"sync"
	"sync/atomic"
)

// task is a piece of work. When dropped is true the work has failed and the
// task only lets go of what it holds.
type task func(dropped bool)

// workPool works off a stack of tasks, which may push others, with a few
// goroutines. The latest task comes first, so that a tree is gone through
// depth first and the stack stays short.
type workPool struct {
	ctx   context.Context //nolint:containedctx // lives as long as the work
	limit int             // of goroutines

	wg      sync.WaitGroup
	failed  atomic.Bool
	mu      sync.Mutex
	ready   sync.Cond
	stack   []task
	pending int // tasks on the stack or at work
	workers int
	err     error
}

func newWorkPool(ctx context.Context, limit int) *workPool {
	p := &workPool{ctx: ctx, limit: limit}
	p.ready.L = &p.mu
	return p
}

// run works until no task is left and returns the first failure.
func (p *workPool) run(first task) error {
	p.push(first)
	p.workers++
	p.work()
	p.wg.Wait()
	return p.err
}

// push puts a task on the stack and sees to it that someone takes it.
func (p *workPool) push(t task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stack = append(p.stack, t)
	p.pending++
	if len(p.stack) > 1 && p.workers < p.limit {
		p.workers++
		p.wg.Go(p.work)
	}
	p.ready.Signal()
}

func (p *workPool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.stack) == 0 {
			if p.pending == 0 {
				return
			}
			p.ready.Wait()
		}
		t := p.stack[len(p.stack)-1]
		p.stack = p.stack[:len(p.stack)-1]
		p.mu.Unlock()
		t(p.stop())
		p.mu.Lock()
		if p.pending--; p.pending == 0 {
			p.ready.Broadcast()
		}
	}
}

// fail makes the work end with err; the first one counts.
func (p *workPool) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.failed.Store(true)
}

// stop reports whether the work has failed or was cancelled.
func (p *workPool) stop() bool {
	if !p.failed.Load() && p.ctx.Err() != nil {
		p.fail(p.ctx.Err())
	}
	return p.failed.Load()
}
