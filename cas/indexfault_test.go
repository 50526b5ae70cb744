package cas

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestMappedIndexThatCannotBeRead: a run whose file is cut while it is mapped
// ends no process. Nothing that the index says counts from then on, a collection
// least of all, until the store is opened anew and makes the run again.
func TestMappedIndexThatCannotBeRead(t *testing.T) {
	for name, use := range map[string]func(*Store, Digest) error{
		"read":    func(s *Store, d Digest) error { _, err := s.GetBytes(t.Context(), d); return err },
		"collect": func(s *Store, _ Digest) error { _, err := s.GC(t.Context(), GCOptions{NoGrace: true}); return err },
		"merge": func(s *Store, _ Digest) error {
			for range 4 {
				if _, err := s.PutBytes(t.Context(), randomBytes(99, 10_000)); err != nil {
					return err
				}
				if err := s.sealOpenPack(); err != nil {
					return err
				}
			}
			return s.mergeIndex(t.Context().Err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := Config{mergeByHand: true}
			s := openStore(t, dir, cfg)
			var all []Digest
			for i := range 200 {
				d, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 100))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, d)
			}
			work := t.TempDir()
			writeFile(t, filepath.Join(work, "f"), "kept")
			commit(t, s, "h", snapshot(t, s, work, "").Tree, "")
			if err := s.sealOpenPack(); err != nil {
				t.Fatal(err)
			}
			runs, err := filepath.Glob(filepath.Join(dir, "index", "*.idx"))
			if err != nil || len(runs) != 1 {
				t.Fatal(runs, err)
			}
			if err := os.Truncate(runs[0], 0); err != nil {
				t.Fatal(err)
			}
			first := use(s, all[7])
			if first == nil {
				t.Error("the cut run was not noticed")
			}
			if _, err := s.GetBytes(t.Context(), all[7]); !errors.Is(err, ErrFailed) {
				t.Errorf("afterwards a read gives %v, want ErrFailed (first %v)", err, first)
			}
			if _, err := s.GC(t.Context(), GCOptions{NoGrace: true}); !errors.Is(err, ErrFailed) {
				t.Errorf("afterwards a collection gives %v, want ErrFailed", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s = openStore(t, dir, cfg)
			for _, d := range all {
				if _, err := s.GetBytes(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			if rep := verify(t, s); !rep.OK() {
				t.Errorf("verify: %+v", rep)
			}
		})
	}
}
