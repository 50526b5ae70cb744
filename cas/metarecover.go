package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// metaRemains are the readable values of a damaged meta.db, by bucket and key.
type metaRemains map[string]map[string][]byte

func (s *Store) metaPath() string    { return filepath.Join(s.dir, "meta.db") }
func (s *Store) damagedPath() string { return s.metaPath() + ".damaged" }

// openMeta opens meta.db, making it when there are no packs yet. When it is to
// be filled from the packs, it returns what remains of the one before. A
// recovery that a crash interrupted goes on.
func (s *Store) openMeta(packs bool) (remains metaRemains, err error) {
	_, statErr := os.Stat(s.metaPath())
	if errors.Is(statErr, os.ErrNotExist) {
		if packs && !s.cfg.RecoverMeta {
			return nil, ErrMetaLost
		}
		if err := createMeta(s.metaPath(), packs); err != nil {
			return nil, fmt.Errorf("meta.db: %w", err)
		}
	}
	s.meta, err = openMeta(s.metaPath())
	if isMetaDamage(err) && s.cfg.RecoverMeta {
		s.log.Warn("meta.db is damaged and will be made anew", "error", err, "kept", s.damagedPath())
		if err = os.Rename(s.metaPath(), s.damagedPath()); err == nil {
			err = createMeta(s.metaPath(), true)
		}
		if err == nil {
			s.meta, err = openMeta(s.metaPath())
		}
	}
	if err != nil {
		return nil, err
	}
	s.meta.faults = s.cfg.faults
	err = s.meta.view(func(tx *metaTx) error {
		if tx.get(bucketMeta, []byte("recovering")) != nil {
			remains = salvageMeta(s.damagedPath())
		}
		return nil
	})
	return remains, err
}

// salvageMeta reads what is readable of a damaged meta.db. Values may be those
// of an earlier time.
func salvageMeta(path string) metaRemains {
	all := make(metaRemains)
	f, err := os.Open(path)
	if err != nil {
		return all
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return all
	}
	m := newMetaFile(f, info.Size())
	m.tolerate = true
	root, ok := m.anyRoot()
	if !ok {
		return all
	}
	_ = m.buckets(root.root, func(string) {}, func(name string, key, sealed []byte) error {
		if value, ok := unsealValue([]byte(name), key, sealed); ok {
			if all[name] == nil {
				all[name] = make(map[string][]byte)
			}
			all[name][string(key)] = bytes.Clone(value)
		}
		return nil
	})
	return all
}

// anyRoot reads the newer of the good meta pages. Should the page size be lost
// with the first one, the usual sizes are tried.
func (m *metaFile) anyRoot() (best boltRoot, ok bool) {
	for _, at := range []int64{0, 4096, 16384, 65536} {
		if r, err := m.readRoot(0, at); err == nil && (!ok || r.txid > best.txid) {
			best, ok = r, true
		}
	}
	m.pageSize, m.high = best.pageSize, best.high
	return best, ok
}

// metaRecovery fills a new meta.db.
type metaRecovery struct {
	store   *Store
	remains metaRemains
	heads   map[string]Head // each head's latest commit
	commits []Commit
}

// recoverMeta rebuilds heads: of the commits in the packs, and of what remains
// of the old meta.db, each head's one with the highest epoch, then sequence.
func (s *Store) recoverMeta(ctx context.Context, remains metaRemains) error {
	r := &metaRecovery{store: s, remains: remains, heads: make(map[string]Head)}
	if err := r.readCommits(ctx); err != nil {
		return err
	}
	r.readRemains()
	if err := s.noteBroken(ctx); err != nil {
		return err
	}
	s.log.Warn("meta.db was lost or damaged; heads were rebuilt", "heads", len(r.heads), "commits", len(r.commits))
	return s.meta.update(r.write)
}

// readCommits considers the commits that an index knows: of one that it does
// not know the record is still there, but a collection took what it names.
func (r *metaRecovery) readCommits(ctx context.Context) error {
	return r.store.eachMeta(ctx, func(_ loc, kind Kind, d Digest, content []byte) {
		if kind != KindCommit || !r.store.index.has(d) {
			return
		}
		if c, err := parseCommit(content); err == nil {
			c.Digest = d
			r.consider(c)
		}
	})
}

func (r *metaRecovery) consider(c Commit) {
	r.commits = append(r.commits, c)
	r.offer(Head{Name: c.Head, Commit: c.Digest, Tree: c.Tree, Epoch: c.Epoch, Seq: c.Seq, Source: c.Source})
}

func (r *metaRecovery) offer(h Head) {
	was, ok := r.heads[h.Name]
	if !ok || h.Epoch > was.Epoch || h.Epoch == was.Epoch && h.Seq > was.Seq {
		r.heads[h.Name] = h
	}
}

// readRemains considers commits that were in no pack yet, and old heads.
func (r *metaRecovery) readRemains() {
	for key, content := range r.remains[string(bucketPending)] {
		d, err := DigestFromBytes([]byte(key))
		c, err2 := parseCommit(content)
		if err != nil || err2 != nil || d != DigestOf(content) {
			delete(r.remains[string(bucketPending)], key)
			continue
		}
		c.Digest = d
		r.consider(c)
	}
	for name, value := range r.remains[string(bucketHeads)] {
		if h, err := parseHead(name, value); err == nil && r.store.index.has(h.Commit) {
			r.offer(h)
		}
	}
}

// write stores all that was found, in one transaction.
func (r *metaRecovery) write(tx *metaTx) error {
	var errs []error
	for name, h := range r.heads {
		errs = append(errs, tx.put(bucketHeads, []byte(name), h.marshal()))
	}
	for _, bucket := range [][]byte{bucketFences, bucketPending} {
		for key, value := range r.remains[string(bucket)] {
			errs = append(errs, tx.put(bucket, []byte(key), value))
		}
	}
	for _, bucket := range [][]byte{bucketPins, bucketLeases} {
		for key, value := range r.remains[string(bucket)] {
			d, err := DigestFromBytes(value[:min(len(value), DigestSize)])
			if err == nil && r.store.index.has(d) {
				errs = append(errs, tx.put(bucket, []byte(key), value))
			}
		}
	}
	for _, c := range r.commits {
		_, rides := r.remains[string(bucketPending)][string(c.Parent.Bytes())]
		there := rides || r.store.index.has(c.Parent) && !r.store.isDamaged(c.Parent)
		if !c.Parent.IsZero() && !there { // it was collected
			errs = append(errs, tx.put(bucketShallow, c.Digest.Bytes(), []byte{1}))
		}
	}
	for d, l := range r.store.damaged.all {
		errs = append(errs, tx.put(bucketDamaged, d.Bytes(), append(leBytes(l.pack), leBytes(uint64(l.off))...)))
	}
	pos, _ := r.store.writer.clean() // all of it was scanned and synced
	errs = append(errs, markDurable(tx, pos))
	return errors.Join(append(errs, tx.del(bucketMeta, []byte("recovering")))...)
}

// noteBroken finds directories, chunk lists and commits that name what is not there:
// with meta.db went the knowledge of which records a collection had removed.
// They count as damaged, so that nobody relies on them and the same content
// takes their place.
func (s *Store) noteBroken(ctx context.Context) error {
	for {
		found := 0
		err := s.eachMeta(ctx, func(l loc, kind Kind, d Digest, content []byte) {
			if !s.isDamaged(d) && !s.namesAreThere(kind, content) {
				if now, ok := s.index.find(d); ok && now == l {
					s.damaged.all[d] = l
					found++
				}
			}
		})
		if err != nil || found == 0 {
			return err
		}
		s.log.Warn("directories that were collected in part are set aside", "objects", found)
	}
}

func (s *Store) namesAreThere(kind Kind, content []byte) bool {
	there := func(d Digest) bool { return s.index.has(d) && !s.isDamaged(d) }
	switch kind {
	case KindDirectory:
		dir, err := parseDirectory(content)
		if err != nil {
			return true // reading it fails by itself
		}
		for i := range dir.Entries {
			x := &dir.Entries[i]
			switch {
			case x.Type == TypeFile && !x.Chunks.IsZero():
				if !there(x.Chunks) {
					return false
				}
			case x.Type == TypeDir, x.Type == TypeFile && x.Size > 0:
				if !there(x.Digest) {
					return false
				}
			}
		}
	case KindChunkList:
		list, err := parseChunkList(content)
		if err != nil {
			return true
		}
		for _, c := range list.chunks {
			if !there(c.digest) {
				return false
			}
		}
	case KindCommit:
		c, err := parseCommit(content)
		return err != nil || there(c.Tree)
	}
	return true
}

// eachMeta calls fn for the good records that were written as anything but a
// blob.
func (s *Store) eachMeta(ctx context.Context, fn func(l loc, kind Kind, d Digest, content []byte)) error {
	return s.scanPacks(ctx, func(seq uint64, sc *packScanner) error {
		return sc.scanAll(func(rec scanned) error {
			if rec.header.kind != KindBlob {
				if content, err := rec.header.open(rec.payload); err == nil {
					fn(rec.loc(seq), rec.header.kind, rec.header.digest, content)
				}
			}
			return ctx.Err()
		}, func(d *damage) { s.warnDamage(seq, d) })
	})
}
