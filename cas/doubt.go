package cas

import "sync/atomic"

// doubt says that something which a head, a pin or a lease keeps may be damaged
// or lost, so that they do not vouch for their trees any more. meta.db
// remembers it, since an index that was made anew does not know what it lacks.
type doubt struct {
	raised atomic.Bool
	times  atomic.Int64 // that it was raised
}

var keyDoubt = []byte("doubt") // in bucketMeta

// Sound reports whether the trees of heads, pins and leases can be taken for
// whole without looking. Damage or a lack, once met, ends that until a Verify or
// a collection has found that they have all they need.
func (s *Store) Sound() bool { return !s.doubt.raised.Load() }

// raiseDoubt notes that something is damaged or lost.
func (s *Store) raiseDoubt() {
	s.doubt.times.Add(1)
	s.touches.unvouch()
	if s.doubt.raised.Swap(true) {
		return
	}
	err := s.meta.update(func(tx *metaTx) error { return tx.put(bucketMeta, keyDoubt, []byte{1}) })
	if err != nil {
		s.log.Warn("that objects are damaged or lost is remembered until the store closes only", "error", err)
	}
}

// dispel notes that all that is kept was found whole, unless damage was met
// since times was read.
func (s *Store) dispel(times int64) error {
	if s.Sound() || s.doubt.times.Load() != times {
		return nil
	}
	if err := s.meta.update(func(tx *metaTx) error { return tx.del(bucketMeta, keyDoubt) }); err != nil {
		return err
	}
	s.doubt.raised.Store(false)
	if s.doubt.times.Load() != times { // just now
		s.raiseDoubt()
	}
	return nil
}

func (s *Store) loadDoubt() error {
	return s.meta.view(func(tx *metaTx) error {
		s.doubt.raised.Store(tx.get(bucketMeta, keyDoubt) != nil)
		return nil
	})
}

// anyDamaged reports whether an object is known whose only record is bad.
func (s *Store) anyDamaged() bool {
	s.damaged.mu.Lock()
	all := make([]Digest, 0, len(s.damaged.all))
	for d := range s.damaged.all {
		all = append(all, d)
	}
	s.damaged.mu.Unlock()
	for _, d := range all {
		if s.isDamaged(d) {
			return true
		}
	}
	return false
}
