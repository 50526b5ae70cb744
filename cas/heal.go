package cas

import (
	"errors"
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
	s.noteAllDamage([]indexEntry{{d, l}})
}

// noteAllDamage remembers bad records, of which nobody need know yet.
func (s *Store) noteAllDamage(bad []indexEntry) {
	var news []indexEntry
	s.damaged.mu.Lock()
	for _, e := range bad {
		if was, known := s.damaged.all[e.digest]; !known || was != e.loc {
			s.damaged.all[e.digest] = e.loc
			news = append(news, e)
		}
	}
	s.damaged.mu.Unlock()
	if len(news) == 0 {
		return
	}
	first := news[0]
	s.log.Error("objects are damaged; the same content heals them when it is put again",
		"objects", len(news), "digest", first.digest, "pack", packName(first.loc.pack), "offset", first.loc.off)
	if s.caches != nil {
		s.caches.dropAll()
	}
	s.raiseDoubt()
	err := s.meta.update(func(tx *metaTx) error {
		var errs []error
		for _, e := range news {
			errs = append(errs, tx.put(bucketDamaged, e.digest.Bytes(), append(leBytes(e.loc.pack), leBytes(uint64(e.loc.off))...)))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		s.log.Warn("damage is remembered until the store closes only", "objects", len(news), "error", err)
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
