package cas

import (
	"sync"
)

// damagedObjects remembers which objects turned out to be unreadable. Such an
// object counts as missing to whoever puts it, so that putting the same
// content again writes a good record, which takes the place of the bad one.
// meta.db remembers them too.
type damagedObjects struct {
	mu  sync.Mutex
	all map[Digest]loc // the bad record
}

// noteDamage remembers a bad record. The first time, the stat caches go: they
// would keep the files from being read whose content could heal it.
func (s *Store) noteDamage(d Digest, l loc) {
	s.damaged.mu.Lock()
	_, known := s.damaged.all[d]
	s.damaged.all[d] = l
	s.damaged.mu.Unlock()
	if known {
		return
	}
	s.log.Error("object is damaged; the same content heals it when it is put again", "digest", d, "pack", packName(l.pack), "offset", l.off)
	if s.caches != nil {
		s.caches.dropAll()
	}
	err := s.meta.update(func(tx *metaTx) error {
		return tx.put(bucketDamaged, d.Bytes(), append(leBytes(l.pack), leBytes(uint64(l.off))...))
	})
	if err != nil {
		s.log.Warn("damage is remembered until the store closes only", "digest", d, "error", err)
	}
}

// loadDamage reads from meta.db which objects are still damaged.
func (s *Store) loadDamage() error {
	return s.meta.view(func(tx *metaTx) error {
		return tx.each(bucketDamaged, func(k, v []byte) error {
			d, err := DigestFromBytes(k)
			l, ok := s.index.find(d)
			if err == nil && ok && len(v) == 16 && l.pack == leUint64(v[:8]) && l.off == int64(leUint64(v[8:])) {
				s.damaged.all[d] = l
			}
			return err
		})
	})
}

// isDamaged reports whether the record that the index has of d is known to be
// bad. Once a good one has taken its place it is not.
func (s *Store) isDamaged(d Digest) bool {
	s.damaged.mu.Lock()
	defer s.damaged.mu.Unlock()
	bad, ok := s.damaged.all[d]
	if !ok {
		return false
	}
	if l, found := s.index.find(d); found && l == bad {
		return true
	}
	delete(s.damaged.all, d)
	return false
}
