package cas

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"

	"go.etcd.io/bbolt"
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
	bucketSums    = []byte("sums")    // bucket -> its bucketSum

	allBuckets = [][]byte{bucketHeads, bucketFences, bucketDurable, bucketPending, bucketMeta,
		bucketLeases, bucketPins, bucketEpochs, bucketDead, bucketTrash, bucketShallow, bucketDamaged}
)

const metaVersion = 2 // 2: with checksums

// metaDB holds what cannot be derived from packs. Its updates are durable
// when they return, and those that come at the same time share one commit.
// Every value has a checksum, and every bucket a sum of its keys and values.
type metaDB struct {
	boltDB
	faults faults

	mu      sync.Mutex
	waiting []*metaUpdate
	running bool

	// The next two belong to the update that is running.
	sums   map[string]bucketSum
	failed error // damage was met while writing; what bbolt holds in memory is unknown
}

type metaUpdate struct {
	apply func(*metaTx) error
	err   error
	done  chan struct{}
}

// openMeta opens meta.db after it has checked all of it. One of version 1 is
// replaced by what it holds with checksums.
func openMeta(path string) (*metaDB, error) {
	sums, err := checkMetaFile(path, nil)
	var v *VersionError
	if errors.As(err, &v) && v.Got == 1 {
		if err = upgradeMeta(path); err == nil {
			sums, err = checkMetaFile(path, nil)
		}
	}
	if err != nil {
		return nil, err
	}
	m := &metaDB{sums: sums}
	return m, m.open(path)
}

// update runs apply in a durable transaction. apply must make all its checks
// before its first write: it shares the transaction with others, and its
// error does not undo what it wrote.
func (m *metaDB) update(apply func(*metaTx) error) error {
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
		m.finish(batch)
		m.mu.Lock()
	}
	m.running = false
	m.mu.Unlock()
	return u.err
}

func (m *metaDB) finish(batch []*metaUpdate) {
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
	if m.failed != nil {
		return m.failed
	}
	if err := m.faults.at("commit meta.db"); err != nil {
		return err
	}
	changed := make(map[string]bucketSum)
	err := m.run(func() error {
		return m.db.Update(func(tx *bbolt.Tx) error { return m.apply(batch, &metaTx{tx: tx, sums: changed, base: m.sums}) })
	})
	if isMetaDamage(err) {
		m.failed = err
	}
	if err != nil {
		return err
	}
	maps.Copy(m.sums, changed)
	return m.faults.at("meta.db committed")
}

func (m *metaDB) apply(batch []*metaUpdate, tx *metaTx) error {
	failed := 0
	for _, u := range batch {
		if u.err = u.apply(tx); u.err != nil {
			failed++
		}
	}
	if tx.err == nil && failed == len(batch) {
		return errNothingToCommit
	}
	return tx.writeSums()
}

var errNothingToCommit = errors.New("every update of the batch was refused")

// view runs fn in a transaction that sees the state at its begin.
func (m *metaDB) view(fn func(*metaTx) error) error {
	return m.run(func() error {
		return m.db.View(func(tx *bbolt.Tx) error {
			t := &metaTx{tx: tx}
			err := fn(t)
			if t.err != nil {
				return t.err
			}
			return err
		})
	})
}

// durableEnd returns up to where pack seq is known to be on the disk.
func (m *metaDB) durableEnd(seq uint64) (end int64, err error) {
	err = m.view(func(tx *metaTx) error {
		end = int64(leUint64(tx.get(bucketDurable, beBytes(seq))))
		return nil
	})
	return end, err
}

// markDurable records in tx that pos is on the disk. Marks of older packs go:
// sealed packs are durable whole.
func markDurable(tx *metaTx, pos position) error {
	if pos.seq == 0 {
		return nil
	}
	var old [][]byte
	later := false
	err := tx.each(bucketDurable, func(k, v []byte) error {
		switch n := beUint64(k); {
		case n > pos.seq, n == pos.seq && int64(leUint64(v)) >= pos.off:
			later = true // a later sync was recorded already
		case n < pos.seq:
			old = append(old, bytes.Clone(k))
		}
		return nil
	})
	if err != nil || later {
		return err
	}
	for _, k := range old {
		err = errors.Join(err, tx.del(bucketDurable, k))
	}
	return errors.Join(err, tx.put(bucketDurable, beBytes(pos.seq), leBytes(uint64(pos.off))))
}

// markSealed records in tx that pack seq and those before it are complete.
func markSealed(tx *metaTx, seq uint64) error {
	if leUint64(tx.get(bucketEpochs, []byte("sealed"))) >= seq {
		return nil
	}
	return tx.put(bucketEpochs, []byte("sealed"), leBytes(seq))
}

func leUint64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func beUint64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func leBytes(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func beBytes(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// pendingCommits returns the commits that may be in no pack.
func (m *metaDB) pendingCommits() (contents [][]byte, err error) {
	err = m.view(func(tx *metaTx) error {
		return tx.each(bucketPending, func(_, v []byte) error {
			contents = append(contents, bytes.Clone(v))
			return nil
		})
	})
	return contents, err
}

// epoch returns one of collection's counters.
func (m *metaDB) epoch(name string) (v uint64, err error) {
	err = m.view(func(tx *metaTx) error {
		v = leUint64(tx.get(bucketEpochs, []byte(name)))
		return nil
	})
	return v, err
}

// shallow returns the commits whose parents were collected.
func (m *metaDB) shallow() (cut map[Digest]bool, err error) {
	cut = make(map[Digest]bool)
	err = m.view(func(tx *metaTx) error {
		return tx.each(bucketShallow, func(k, _ []byte) error {
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
	err = m.view(func(tx *metaTx) error {
		list := tx.get(bucketDead, beBytes(seq))
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
