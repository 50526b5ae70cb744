package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
)

// The library that writes blobs writes index.json in place and as it knew it:
// a crash meanwhile would cost a layout all of its images, and exports at once
// would lose each other's. So the index is ours.

// makeLayout makes what a layout needs before blobs, where it is missing.
func makeLayout(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, v1.ImageLayoutFile)); len(names) > 0 && errors.Is(err, os.ErrNotExist) && !slices.ContainsFunc(names, ours) {
		return fmt.Errorf("%s is not empty and no OCI image layout; name another directory: %w", dir, cas.ErrExist)
	}
	return locked(dir, func() error {
		if err := unlessThere(dir, v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}); err != nil {
			return err
		}
		return unlessThere(dir, v1.ImageIndexFile, newIndex())
	})
}

// ours tells what another export that begins just now may have made.
func ours(x os.DirEntry) bool {
	return strings.HasPrefix(x.Name(), ".") || x.Name() == v1.ImageIndexFile
}

func newIndex() v1.Index {
	return v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []v1.Descriptor{}}
}

// enter names the image in the index, in the place of the one that had its tag.
// Its blobs are made durable first.
func enter(dir string, manifest v1.Descriptor, tag string) error {
	if err := syncLayout(dir); err != nil {
		return err
	}
	return locked(dir, func() error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer func() { _ = root.Close() }()
		index := newIndex()
		if err := (source{root}).decode(v1.ImageIndexFile, &index); err != nil {
			return err
		}
		manifest.Annotations = map[string]string{v1.AnnotationRefName: tag}
		index.Manifests = slices.DeleteFunc(index.Manifests, func(d v1.Descriptor) bool {
			return d.Annotations[v1.AnnotationRefName] == tag
		})
		index.Manifests = append(index.Manifests, manifest)
		if content, err := json.Marshal(index); err != nil {
			return err
		} else if len(content) > maxManifest {
			return &cas.LimitError{What: "bytes in " + v1.ImageIndexFile, Limit: maxManifest}
		}
		return replaceJSON(dir, v1.ImageIndexFile, index)
	})
}

// locked keeps other exports to the layout out meanwhile.
func locked(dir string, do func() error) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // which lets go of the lock
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	return do()
}

func unlessThere(dir, name string, v any) error {
	if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return replaceJSON(dir, name, v)
}

// replaceJSON puts a file in the place of another in one durable step.
func replaceJSON(dir, name string, v any) error {
	content, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".index-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return syncLayout(dir)
}
