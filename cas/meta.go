package cas

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// The buckets of meta.db. Those from leases on belong to collection.
var (
	bucketHeads   = []byte("heads")   // name -> head record
	bucketFences  = []byte("fences")  // name -> lowest epoch that may commit, LE64
	bucketDurable = []byte("durable") // pack, BE64 -> end of its durable records, LE64
	bucketPending = []byte("pending") // digest -> commit object whose pack is not synced yet
	bucketMeta    = []byte("meta")
	bucketLeases  = []byte("leases")  // name -> tree, collections left LE64
	bucketPins    = []byte("pins")    // name -> tree
	bucketEpochs  = []byte("epochs")  // "mark": last pack at the last collection, "top": highest pack ever, "sealed": highest pack known to be sealed, "sweep": 1 while index runs may know of dead records; LE64
	bucketDead    = []byte("dead")    // pack, BE64 -> offsets of records that were collected, LE64 each
	bucketTrash   = []byte("trash")   // pack, BE64 -> it is on its way to the trash
	bucketShallow = []byte("shallow") // commit whose parent was collected
	bucketDamaged = []byte("damaged") // digest -> pack and offset of its bad record, LE64 each

	allBuckets = [][]byte{bucketHeads, bucketFences, bucketDurable, bucketPending, bucketMeta,
		bucketLeases, bucketPins, bucketEpochs, bucketDead, bucketTrash, bucketShallow, bucketDamaged}
)

const metaVersion = 1

// metaDB holds what cannot be derived from packs. Its updates are durable
// when they return, and those that come at the same time share one commit.
type metaDB struct {
	db     *bbolt.DB
	faults faults

	mu      sync.Mutex
	waiting []*metaUpdate
	running bool
}

type metaUpdate struct {
	apply func(*bbolt.Tx) error
	err   error
	done  chan struct{}
}

func openMeta(path string, create bool) (*metaDB, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && !create {
		return nil, ErrMetaLost
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("meta.db: %w", ErrLocked)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fmt.Errorf("meta.db: %w: %w", err, ErrCorrupt)
	case err != nil:
		return nil, fmt.Errorf("meta.db: %w", err)
	}
	m := &metaDB{db: db}
	if err := m.init(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return m, nil
}

// init makes the buckets that are missing, all of them in a new file, and
// checks the version of an old one.
func (m *metaDB) init() error {
	fresh := false
	err := m.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if b == nil {
			fresh = true
			return nil
		}
		if v := leUint64(b.Get([]byte("version"))); v != metaVersion {
			return &VersionError{What: "meta.db", Got: v, Want: metaVersion}
		}
		fresh = slices.ContainsFunc(allBuckets, func(name []byte) bool { return tx.Bucket(name) == nil })
		return nil
	})
	if err != nil || !fresh {
		return err
	}
	return m.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range allBuckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put([]byte("version"), leBytes(metaVersion))
	})
}

// update runs apply in a durable transaction. apply must make all its checks
// before its first write: it shares the transaction with others, and its
// error does not undo what it wrote.
func (m *metaDB) update(apply func(*bbolt.Tx) error) error {
	u := &metaUpdate{apply: apply, done: make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, u)
	if m.running {
		m.mu.Unlock()
		<-u.done
		return u.err
	}
	m.running = true
	for len(m.waiting) > 0 {
		batch := m.waiting
		m.waiting = nil
		m.mu.Unlock()
		m.run(batch)
		m.mu.Lock()
	}
	m.running = false
	m.mu.Unlock()
	return u.err
}

func (m *metaDB) run(batch []*metaUpdate) {
	err := m.commit(batch)
	for _, u := range batch {
		if u.err == nil && err != nil && !errors.Is(err, errNothingToCommit) {
			u.err = fmt.Errorf("meta.db: %w", err)
		}
		close(u.done)
	}
}

// commit applies a batch in one transaction.
func (m *metaDB) commit(batch []*metaUpdate) error {
	if err := m.faults.at("commit meta.db"); err != nil {
		return err
	}
	err := m.db.Update(func(tx *bbolt.Tx) error {
		failed := 0
		for _, u := range batch {
			if u.err = u.apply(tx); u.err != nil {
				failed++
			}
		}
		if failed == len(batch) {
			return errNothingToCommit
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.faults.at("meta.db committed")
}

var errNothingToCommit = errors.New("every update of the batch was refused")

func (m *metaDB) view(fn func(*bbolt.Tx) error) error { return m.db.View(fn) }

func (m *metaDB) close() error { return m.db.Close() }

// durableEnd returns up to where pack seq is known to be on the disk.
func (m *metaDB) durableEnd(seq uint64) (end int64, err error) {
	err = m.view(func(tx *bbolt.Tx) error {
		end = int64(leUint64(tx.Bucket(bucketDurable).Get(beBytes(seq))))
		return nil
	})
	return end, err
}

// markDurable records in tx that pos is on the disk. Marks of older packs go:
// sealed packs are durable whole.
func markDurable(tx *bbolt.Tx, pos position) error {
	if pos.seq == 0 {
		return nil
	}
	b, key := tx.Bucket(bucketDurable), beBytes(pos.seq)
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		switch n := binary.BigEndian.Uint64(k); {
		case n > pos.seq, n == pos.seq && int64(leUint64(v)) >= pos.off:
			return nil // a later sync was recorded already
		case n < pos.seq:
			if err := c.Delete(); err != nil {
				return err
			}
		}
	}
	return b.Put(key, leBytes(uint64(pos.off)))
}

// markSealed records in tx that pack seq and those before it are complete.
func markSealed(tx *bbolt.Tx, seq uint64) error {
	b := tx.Bucket(bucketEpochs)
	if leUint64(b.Get([]byte("sealed"))) >= seq {
		return nil
	}
	return b.Put([]byte("sealed"), leBytes(seq))
}

func leUint64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func leBytes(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func beBytes(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// pendingCommits returns the commits that may be in no pack.
func (m *metaDB) pendingCommits() (contents [][]byte, err error) {
	err = m.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPending).ForEach(func(_, v []byte) error {
			contents = append(contents, bytes.Clone(v))
			return nil
		})
	})
	return contents, err
}

// epoch returns one of collection's counters.
func (m *metaDB) epoch(name string) (v uint64, err error) {
	err = m.view(func(tx *bbolt.Tx) error {
		v = leUint64(tx.Bucket(bucketEpochs).Get([]byte(name)))
		return nil
	})
	return v, err
}

// shallow returns the commits whose parents were collected.
func (m *metaDB) shallow() (cut map[Digest]bool, err error) {
	cut = make(map[Digest]bool)
	err = m.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketShallow).ForEach(func(k, _ []byte) error {
			d, err := DigestFromBytes(k)
			cut[d] = true
			return err
		})
	})
	return cut, err
}

// deadOffsets returns where the collected records of a pack lie; nil when
// there are none.
func (m *metaDB) deadOffsets(seq uint64) (dead map[int64]bool, err error) {
	err = m.view(func(tx *bbolt.Tx) error {
		list := tx.Bucket(bucketDead).Get(beBytes(seq))
		for ; len(list) >= 8; list = list[8:] {
			if dead == nil {
				dead = make(map[int64]bool)
			}
			dead[int64(leUint64(list[:8]))] = true
		}
		return nil
	})
	return dead, err
}
