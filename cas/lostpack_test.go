package cas

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVerifyFollowsPins: what pins and leases keep and what is lost of it is
// named with them.
func TestVerifyFollowsPins(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	for i, name := range []string{"pinned", "leased"} {
		writeFile(t, filepath.Join(work, name, "f"), name)
		tree := snapshot(t, s, work, "").Tree
		if i == 0 {
			must(t, s.Pin(t.Context(), "p", tree))
		} else {
			must(t, s.Lease(t.Context(), "l", tree, 5))
		}
	}
	if rep := verify(t, s); !rep.OK() || rep.Pins != 1 || rep.Leases != 1 || rep.Heads != 0 || rep.Reached != 6 {
		t.Fatalf("verify %+v", rep)
	}
	all, err := s.Pinned(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "p" || all[0].Lease || all[1].Name != "l" || all[1].Collections != 5 {
		t.Errorf("pinned %+v, %v", all, err)
	}
	must(t, s.Close())
	must(t, os.Remove(onlyPack(t, dir, 1)))
	s = openStore(t, dir, Config{})
	rep := verify(t, s)
	if rep.OK() || len(rep.Missing) != 2 || rep.Missing[0].Pin != "p" || rep.Missing[1].Lease != "l" || !slices.Equal(rep.LostPacks, []uint64{1}) {
		t.Errorf("verify %+v", rep)
	}
	if _, err := s.GC(t.Context(), GCOptions{NoGrace: true}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `pin "p"`) {
		t.Errorf("collection: %v", err)
	}
	must(t, errors.Join(s.Unpin(t.Context(), "p"), s.EndLease(t.Context(), "l")))
	collect(t, s, GCOptions{NoGrace: true})
	if _, err := s.PutBytes(t.Context(), []byte("more")); err != nil {
		t.Fatal(err)
	}
	must(t, s.Sync(t.Context()))
	if rep := verify(t, s); !rep.OK() || !s.Sound() {
		t.Errorf("verify after letting go: %+v", rep)
	}
}

// TestLostPackNumbers: the number of a pack that is gone, open or sealed, is not
// used again, and its loss is told when the store opens.
func TestLostPackNumbers(t *testing.T) {
	for name, seal := range map[string]bool{"open": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			dir, work := t.TempDir(), t.TempDir()
			s := openStore(t, dir, Config{})
			writeFile(t, filepath.Join(work, "f"), "content")
			h := commit(t, s, "ws", snapshot(t, s, work, "k").Tree, "x")
			must(t, s.Sync(t.Context()))
			if seal {
				must(t, s.sealOpenPack())
			}
			must(t, s.Close())
			keep := filepath.Join(t.TempDir(), "keep")
			must(t, os.Rename(onlyPack(t, dir, 1), keep))
			var said bytes.Buffer
			s = openStore(t, dir, Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
			if !strings.Contains(said.String(), "packs are lost") || s.Sound() {
				t.Errorf("said %q", said.String())
			}
			if rep := verify(t, s); rep.OK() || !slices.Equal(rep.LostPacks, []uint64{1}) {
				t.Errorf("verify %+v", rep)
			}
			// The same content heals the head's tree; its commit comes with the pack.
			if res := snapshot(t, s, work, "k"); res.Tree != h.Tree || res.NewFiles != 1 {
				t.Errorf("snapshot %+v", res)
			}
			must(t, s.Close())
			must(t, os.Rename(keep, filepath.Join(dir, "packs", packName(1)))) // the name is free
			onlyPack(t, dir, 2)
			s = openStore(t, dir, Config{})
			if rep := verify(t, s); len(rep.Missing) != 0 || len(rep.LostPacks) != 0 || !s.Sound() {
				t.Errorf("verify after putting it back: %+v", rep)
			}
		})
	}
}

// TestLostPackHeals: after a loss and a rebuild the head does not vouch for its
// tree, so the next snapshot stores again what is lacking.
func TestLostPackHeals(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "sub/f"), "lost")
	snapshot(t, s, work, "k")
	must(t, s.sealOpenPack())
	writeFile(t, filepath.Join(work, "g"), "new")
	waitUntilSettled(t, s, work)
	h := commit(t, s, "ws", snapshot(t, s, work, "k").Tree, "x")
	s.caches.flush()
	must(t, s.Close())
	must(t, os.Remove(onlyPack(t, dir, 1)))
	s = openStore(t, dir, Config{})
	must(t, s.Rebuild(t.Context()))
	must(t, s.Close())
	s = openStore(t, dir, Config{}) // remembers it
	if s.Sound() {
		t.Error("the store is taken for sound")
	}
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "other", Tree: h.Tree}); !errors.Is(err, ErrNotFound) {
		t.Errorf("commit of a tree that is not whole: %v", err)
	}
	if res := snapshot(t, s, work, "k"); res.Tree != h.Tree || res.NewFiles == 0 {
		t.Errorf("snapshot %+v", res)
	}
	if got := readCommitted(t, s, h.Tree, "sub/f"); string(got) != "lost" {
		t.Errorf("content %q", got)
	}
	if rep := verify(t, s); !rep.OK() || !s.Sound() {
		t.Errorf("verify %+v", rep)
	}
}
