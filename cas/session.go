package cas

import (
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Session keeps what it finds and what it puts from being collected until it
// ends. It is for work that lasts longer than one call, such as a transfer;
// it does not keep the store from closing. Its methods may be called from
// several goroutines.
type Session struct {
	store *Store
	end   func()
	once  sync.Once

	seed   maphash.Seed
	mu     sync.Mutex
	proven map[uint64]struct{} // trees and chunk lists found complete, by a keyed hash
}

// NewSession begins a session, which the caller ends.
func (s *Store) NewSession(ctx context.Context) (*Session, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return &Session{store: s, end: s.session(), seed: maphash.MakeSeed(), proven: make(map[uint64]struct{})}, nil
}

// End lets go of what the session kept. More calls do nothing.
func (x *Session) End() { x.once.Do(x.end) }

// Has reports whether the store has a readable record of d, and its size. As
// of what kind d is needed decides what a collection keeps with it.
func (x *Session) Has(d Digest, kind Kind) (size int64, ok bool) {
	if !x.store.hit(d, roleOf(kind)) {
		return 0, false
	}
	l, ok := x.store.index.find(d)
	return int64(l.size), ok
}

// lookupRun is how many objects are looked up while collections wait.
const lookupRun = 256

// Missing returns the blobs among refs that the store has no readable record
// of; the others stay until the session ends. A blob that has another size
// than its ref says is an error that matches ErrInvalid.
func (x *Session) Missing(refs []Ref) (missing []Ref, err error) {
	for len(refs) > 0 && err == nil {
		n := min(len(refs), lookupRun)
		missing, err = x.missing(refs[:n], missing)
		refs = refs[n:]
	}
	return missing, err
}

func (x *Session) missing(refs, missing []Ref) ([]Ref, error) {
	s := x.store
	s.touches.mu.Lock()
	defer s.touches.mu.Unlock()
	for _, r := range refs {
		if r.Kind != KindBlob {
			continue
		}
		l, ok := s.index.find(r.Digest)
		switch {
		case !ok || s.isDamaged(r.Digest):
			missing = append(missing, r)
		case int64(l.size) != r.Size:
			return nil, fmt.Errorf("object %s has %d bytes, not %d: %w", r.Digest, l.size, r.Size, ErrInvalid)
		default:
			s.touches.note(r.Digest, roleBlob)
		}
	}
	return missing, nil
}

// PutRecord appends a record that Open has accepted, as it is stored, unless
// the object is there, and reports whether it was new. It is durable after
// Sync. What the object names must have been put or found before.
func (x *Session) PutRecord(ctx context.Context, kind Kind, header RecordHeader, payload []byte) (bool, error) {
	release, err := x.store.enter(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	h := header.h
	h.kind = kind
	fresh, err := x.store.writer.append(h, payload, false)
	if err != nil {
		return false, fmt.Errorf("put %s: %w", h.digest, err)
	}
	if kind != KindBlob {
		x.prove(x.key(kind, h.digest))
	}
	return fresh, nil
}

// TempFile returns a file on the store's file system that has no name, so
// that nothing is left of it when it is closed or the process dies.
func (x *Session) TempFile() (*os.File, error) {
	dir := x.store.dir
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "(unnamed)")), nil
	}
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
