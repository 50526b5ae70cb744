package cas

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
)

// MetaError names what is damaged in meta.db. It matches ErrCorrupt.
type MetaError struct {
	Page        int64  // 0: unknown, or the first one
	Bucket, Key string // "": unknown
	Reason      string
}

// Error implements error.
func (e *MetaError) Error() string {
	where := fmt.Sprintf("page %d", e.Page)
	switch {
	case e.Key != "":
		where = fmt.Sprintf("bucket %q, key %.80q", e.Bucket, e.Key)
	case e.Bucket != "":
		where = fmt.Sprintf("bucket %q", e.Bucket)
	}
	return fmt.Sprintf("meta.db is corrupt: %s: %s; restore the file, or open with Config.RecoverMeta to rebuild heads from commits", where, e.Reason)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *MetaError) Unwrap() error { return ErrCorrupt }

// bucketSum counts a bucket's keys and adds up the hashes of its keys with
// their values, so that a lost, added or stale one shows.
type bucketSum struct {
	count uint64
	lanes [2]uint64
}

func (s *bucketSum) change(key, sealed []byte, by uint64) {
	h := sha256.New()
	_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(key))))
	_, _ = h.Write(key)
	_, _ = h.Write(sealed)
	sum := h.Sum(nil)
	s.count += by
	for i := range s.lanes {
		s.lanes[i] += by * binary.LittleEndian.Uint64(sum[8*i:])
	}
}

func (s *bucketSum) add(key, sealed []byte)    { s.change(key, sealed, 1) }
func (s *bucketSum) remove(key, sealed []byte) { s.change(key, sealed, ^uint64(0)) }

func (s *bucketSum) marshal() []byte {
	return append(append(leBytes(s.count), leBytes(s.lanes[0])...), leBytes(s.lanes[1])...)
}

func parseBucketSum(b []byte) (s bucketSum, ok bool) {
	if len(b) != 24 {
		return s, false
	}
	return bucketSum{leUint64(b[:8]), [2]uint64{leUint64(b[8:16]), leUint64(b[16:])}}, true
}

// sealValue appends a value's checksum, which is of its bucket and key too.
func sealValue(bucket, key, value []byte) []byte {
	out := make([]byte, 0, len(value)+4)
	return binary.LittleEndian.AppendUint32(append(out, value...), valueSum(bucket, key, value))
}

// unsealValue takes the checksum off, and reports whether it is right.
func unsealValue(bucket, key, sealed []byte) ([]byte, bool) {
	if len(sealed) < 4 {
		return nil, false
	}
	value := sealed[:len(sealed)-4]
	return value, binary.LittleEndian.Uint32(sealed[len(value):]) == valueSum(bucket, key, value)
}

func valueSum(bucket, key, value []byte) uint32 {
	b := append(append(append(make([]byte, 0, 64), bucket...), 0), key...)
	return checksum(b) ^ checksum(value)
}

// metaCheck compares all that meta.db holds with its checksums.
type metaCheck struct {
	actual map[string]*bucketSum
	stored map[string]bucketSum
	bad    error // the first wrong checksum
	first  bool  // version 1, which had no checksums
}

// checkMetaFile checks the whole file. With a transaction it checks what that
// one sees of a file in use.
func checkMetaFile(path string, tx *bbolt.Tx) (map[string]bucketSum, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m := newMetaFile(f, info.Size())
	root, err := m.readRoots()
	for n := 0; tx != nil && err != nil && n < 100; n++ { // a commit may just be writing them
		root, err = m.readRoots()
	}
	if err != nil {
		return nil, err
	}
	if tx != nil {
		root.root, m.high = uint64(tx.Cursor().Bucket().Root()), uint64(tx.Size()/m.pageSize)
	}
	c := &metaCheck{actual: make(map[string]*bucketSum), stored: make(map[string]bucketSum)}
	if err := m.buckets(root.root, c.begin, c.value); err != nil {
		return nil, err
	}
	switch {
	case c.first:
		return nil, &VersionError{What: "meta.db", Got: 1, Want: metaVersion}
	case c.bad != nil:
		return nil, c.bad
	}
	return c.stored, c.compare()
}

func (c *metaCheck) begin(name string) { c.actual[name] = &bucketSum{} }

func (c *metaCheck) value(name string, key, sealed []byte) error {
	c.actual[name].add(key, sealed)
	value, ok := unsealValue([]byte(name), key, sealed)
	if name == string(bucketMeta) && string(key) == "version" && leUint64(sealed) == 1 {
		c.first = true
	}
	if ok && name == string(bucketSums) {
		c.stored[string(key)], ok = parseBucketSum(value)
	}
	if !ok && c.bad == nil {
		c.bad = &MetaError{Bucket: name, Key: string(key), Reason: "checksum is wrong"}
	}
	return nil
}

func (c *metaCheck) compare() error {
	for _, name := range allBuckets {
		got, want := c.actual[string(name)], c.stored[string(name)]
		_, known := c.stored[string(name)]
		switch {
		case got == nil || !known:
			return &MetaError{Bucket: string(name), Reason: "it or its sum is missing"}
		case *got != want:
			return &MetaError{Bucket: string(name), Reason: fmt.Sprintf("%d keys are not the %d that were written", got.count, want.count)}
		}
	}
	if len(c.stored) != len(allBuckets) || len(c.actual) != len(allBuckets)+1 {
		return &MetaError{Reason: "there are buckets that were never written"}
	}
	return nil
}

// check compares what meta.db holds now, on the disk, with its checksums.
func (m *metaDB) check() error {
	return m.run(func() error {
		return m.db.View(func(tx *bbolt.Tx) error {
			_, err := checkMetaFile(m.db.Path(), tx)
			return err
		})
	})
}

// isMetaDamage reports whether err is about meta.db being damaged.
func isMetaDamage(err error) bool {
	var e *MetaError
	return errors.As(err, &e)
}
