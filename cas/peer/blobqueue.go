package peer

import (
	"context"
	"sync"

	"skerry.internal/cas"
)

const (
	queueMost  = 64 << 10 // refs that wait; who adds more waits too
	batchBytes = 32 << 20 // content in one batch, about
)

// blobQueue holds the blobs that are still to be asked for. While a blob waits
// or is on its way it is remembered, so that it is asked for once.
type blobQueue struct {
	mu      sync.Mutex
	changed sync.Cond
	waiting []cas.Ref
	known   map[cas.Digest]int64 // size of what waits or is on its way
	closed  bool
}

func newBlobQueue() *blobQueue {
	q := &blobQueue{known: make(map[cas.Digest]int64)}
	q.changed.L = &q.mu
	return q
}

// wake makes those that wait look at their contexts when ctx ends.
func (q *blobQueue) wake(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
}

// add puts refs in the queue, but for those that are known, and returns how
// many it put there. It blocks while the queue is full.
func (q *blobQueue) add(ctx context.Context, refs []cas.Ref) (added int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) >= queueMost && ctx.Err() == nil {
		q.changed.Wait()
	}
	for _, r := range refs {
		if size, ok := q.known[r.Digest]; ok && size == r.Size {
			continue
		} else if ok {
			return added, malformed(r.Digest, "it is named with %d and with %d bytes", size, r.Size)
		}
		q.known[r.Digest] = r.Size
		q.waiting = append(q.waiting, r)
		added++
	}
	q.changed.Broadcast()
	return added, ctx.Err()
}

// again puts refs back that did not arrive whole.
func (q *blobQueue) again(refs []cas.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, refs...)
	q.changed.Broadcast()
}

// take returns a batch; none when the queue is closed and empty.
func (q *blobQueue) take(ctx context.Context) ([]cas.Ref, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed && ctx.Err() == nil {
		q.changed.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n, bytes := 0, int64(0)
	for n < len(q.waiting) && n < MaxBatch/2 && (n == 0 || bytes+q.waiting[n].Size <= batchBytes) {
		bytes += q.waiting[n].Size
		n++
	}
	batch := append([]cas.Ref(nil), q.waiting[:n]...)
	q.waiting = q.waiting[n:]
	q.changed.Broadcast()
	return batch, nil
}

// arrived forgets a blob that the store has now.
func (q *blobQueue) arrived(d cas.Digest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, d)
}

func (q *blobQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}
