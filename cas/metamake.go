package cas

import (
	"errors"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// createMeta makes an empty meta.db. One that is to be filled by a recovery
// says so until that is done.
func createMeta(path string, recovering bool) error {
	return makeMeta(path, func(t *metaTx) error {
		if !recovering {
			return nil
		}
		return t.put(bucketMeta, []byte("recovering"), leBytes(1))
	})
}

// makeMeta makes a meta.db, complete before it has its name.
func makeMeta(path string, fill func(*metaTx) error) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var b boltDB
	if err := b.open(tmp); err != nil {
		return err
	}
	err := b.db.Update(func(tx *bbolt.Tx) error {
		t := &metaTx{tx: tx, sums: make(map[string]bucketSum)}
		for _, name := range append(allBuckets, bucketSums) {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		for _, name := range allBuckets {
			t.sums[string(name)] = bucketSum{}
		}
		return errors.Join(t.put(bucketMeta, []byte("version"), leBytes(metaVersion)), fill(t), t.writeSums())
	})
	if err = errors.Join(err, b.close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// upgradeMeta gives the values of a meta.db of version 1 their checksums.
func upgradeMeta(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	m := newMetaFile(f, info.Size())
	root, err := m.readRoots()
	if err != nil {
		return err
	}
	return makeMeta(path, func(t *metaTx) error {
		return m.buckets(root.root, func(string) {}, func(name string, key, value []byte) error {
			if name == string(bucketMeta) {
				return nil
			}
			return t.put([]byte(name), key, value)
		})
	})
}
