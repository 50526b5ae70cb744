package coordinator

import (
	"context"
	"sync"
)

// keyLock is a set of locks by name; names cost nothing while nobody holds them.
type keyLock struct {
	mu   sync.Mutex
	held map[string]*heldKey
}

type heldKey struct {
	// Full while somebody has the lock.
	sem chan struct{}
	// Holder and waiters; guarded by keyLock.mu.
	users int
}

// lock waits for the lock of key or for ctx's end.
func (k *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = make(map[string]*heldKey)
	}
	h := k.held[key]
	if h == nil {
		h = &heldKey{sem: make(chan struct{}, 1)}
		k.held[key] = h
	}
	h.users++
	k.mu.Unlock()

	select {
	case h.sem <- struct{}{}:
		return func() { <-h.sem; k.leave(key, h) }, nil
	case <-ctx.Done():
		k.leave(key, h)
		return nil, ctx.Err()
	}
}

func (k *keyLock) leave(key string, h *heldKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(k.held, key)
	}
}
