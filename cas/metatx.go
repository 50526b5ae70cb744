package cas

import (
	"bytes"
	"slices"

	"go.etcd.io/bbolt"
)

// metaTx is a transaction on meta.db that checks each value it reads, and
// keeps the buckets' sums up to date. Damage makes reads answer that nothing is
// there and the transaction fail as a whole, so callers need not ask.
type metaTx struct {
	tx   *bbolt.Tx
	sums map[string]bucketSum // of buckets that were changed; nil in a view
	base map[string]bucketSum // of all, as they were
	err  error
}

func (t *metaTx) damaged(bucket, key []byte, reason string) {
	if t.err == nil {
		t.err = &MetaError{Bucket: string(bucket), Key: string(key), Reason: reason}
	}
}

func (t *metaTx) bucket(name []byte) *bbolt.Bucket {
	b := t.tx.Bucket(name)
	if b == nil {
		t.damaged(name, nil, "is missing")
	}
	return b
}

// get returns a value, nil if there is none. It is valid while the transaction
// lasts.
func (t *metaTx) get(bucket, key []byte) []byte {
	value, _ := t.sealed(bucket, key)
	return value
}

// sealed returns a value without its checksum and with it.
func (t *metaTx) sealed(bucket, key []byte) (value, raw []byte) {
	b := t.bucket(bucket)
	if b == nil {
		return nil, nil
	}
	if raw = b.Get(key); raw == nil {
		return nil, nil
	}
	value, ok := unsealValue(bucket, key, raw)
	if !ok {
		t.damaged(bucket, key, "checksum is wrong")
		return nil, nil
	}
	return value, raw
}

// each calls fn for all keys of a bucket in their order; fn must not change it.
func (t *metaTx) each(bucket []byte, fn func(key, value []byte) error) error {
	b := t.bucket(bucket)
	if b == nil {
		return t.err
	}
	return b.ForEach(func(k, raw []byte) error {
		value, ok := unsealValue(bucket, k, raw)
		if !ok {
			t.damaged(bucket, k, "checksum is wrong")
			return t.err
		}
		return fn(k, value)
	})
}

// keys returns copies of all keys of a bucket.
func (t *metaTx) keys(bucket []byte) (keys [][]byte, err error) {
	err = t.each(bucket, func(k, _ []byte) error {
		keys = append(keys, bytes.Clone(k))
		return nil
	})
	return keys, err
}

// put stores a value.
func (t *metaTx) put(bucket, key, value []byte) error {
	sum := t.remove(bucket, key)
	if t.err != nil {
		return t.err
	}
	raw := sealValue(bucket, key, value)
	sum.add(key, raw)
	t.sums[string(bucket)] = sum
	return t.tx.Bucket(bucket).Put(slices.Clone(key), raw)
}

// del removes a key, if it is there.
func (t *metaTx) del(bucket, key []byte) error {
	sum := t.remove(bucket, key)
	if t.err != nil {
		return t.err
	}
	t.sums[string(bucket)] = sum
	return t.tx.Bucket(bucket).Delete(key)
}

// remove returns the bucket's sum without key.
func (t *metaTx) remove(bucket, key []byte) bucketSum {
	sum, changed := t.sums[string(bucket)]
	if !changed {
		sum = t.base[string(bucket)]
	}
	if _, raw := t.sealed(bucket, key); raw != nil {
		sum.remove(key, raw)
	}
	return sum
}

// writeSums stores the sums of the buckets that were changed.
func (t *metaTx) writeSums() error {
	if t.err != nil {
		return t.err
	}
	b := t.tx.Bucket(bucketSums)
	if b == nil {
		return &MetaError{Bucket: string(bucketSums), Reason: "is missing"}
	}
	for name, sum := range t.sums {
		if err := b.Put([]byte(name), sealValue(bucketSums, []byte(name), sum.marshal())); err != nil {
			return err
		}
	}
	return nil
}
