package main

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// largeSteps measure one large file: first, and after an edit of 1 MiB in its
// middle and at its start.
func (b *bench) largeSteps() []step {
	cas := "'" + b.runnerd + "' cas --store ls snapshot large"
	edit := func(at, seed int64) func() error {
		return func() error { return b.scribble(at, 1<<20, uint64(seed)) }
	}
	return []step{
		{"large file, first", "skerry", cas, nil},
		{"large file, first", "borg", "borg init -e none lb && borg create lb::a large && sync -f lb", nil},
		{"large file, first", "casync", "casync make --store=lc.castr a.caidx large && sync -f lc.castr", nil},
		{"large file, 1 MiB edit in the middle", "skerry", cas, edit(b.large/2, 1)},
		{"large file, 1 MiB edit in the middle", "borg", "borg create lb::b large", nil},
		{"large file, 1 MiB edit in the middle", "casync", "casync make --store=lc.castr b.caidx large", nil},
		{"large file, 1 MiB edit at the start", "skerry", cas, edit(0, 2)},
		{"large file, 1 MiB edit at the start", "borg", "borg create lb::c large", nil},
		{"large file, 1 MiB edit at the start", "casync", "casync make --store=lc.castr c.caidx large", nil},
	}
}

// scribble writes n random bytes into the large file.
func (b *bench) scribble(at, n int64, seed uint64) error {
	if err := os.MkdirAll(b.path("large"), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(b.path("large"), "f"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var key [32]byte
	key[0] = byte(rand.New(rand.NewPCG(seed, 7)).Uint32())
	_, err = io.CopyN(io.NewOffsetWriter(f, at), rand.NewChaCha8(key), n)
	return err
}
