package cas

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// indexFile is an index run's file, by its name.
type indexFile struct {
	path        string
	first, last uint64
}

// within reports whether o's range holds all of f's.
func (f *indexFile) within(o *indexFile) bool { return o.first <= f.first && f.last <= o.last }

// parseIndexName reads the range from a name like FIRST-LAST.idx.
func parseIndexName(name string) (first, last uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".idx")
	from, to, found := strings.Cut(digits, "-")
	first, err1 := strconv.ParseUint(from, 16, 64)
	last, err2 := strconv.ParseUint(to, 16, 64)
	return first, last, ok && found && err1 == nil && err2 == nil && indexName(first, last) == name && first <= last
}

// listIndexFiles returns the runs' files by range, wider ones before those
// that lie within them. What a crash left of a write is removed.
func (s *Store) listIndexFiles() ([]indexFile, error) {
	entries, err := os.ReadDir(s.indexDir())
	if err != nil {
		return nil, err
	}
	var files []indexFile
	for _, e := range entries {
		path := filepath.Join(s.indexDir(), e.Name())
		if strings.HasPrefix(e.Name(), ".tmp-") {
			_ = os.Remove(path)
			continue
		}
		if first, last, ok := parseIndexName(e.Name()); ok {
			files = append(files, indexFile{path, first, last})
		}
	}
	slices.SortFunc(files, func(a, b indexFile) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last))
	})
	return files, nil
}

// loadRuns maps every good run. A file whose packs lie in a wider one's range
// is what a crash left of a merge: it may know of records that were collected
// since, and is removed even if the wider one is damaged. Damaged runs are
// removed too: recovery makes them anew from their packs.
func (s *Store) loadRuns() error {
	files, err := s.listIndexFiles()
	if err != nil {
		return err
	}
	var wider *indexFile
	removed := false
	for i := range files {
		f := &files[i]
		switch {
		case wider != nil && f.within(wider):
			err = os.Remove(f.path)
			removed = true
			s.log.Debug("removed an index run that was merged into another", "file", filepath.Base(f.path))
		case wider != nil && f.first <= wider.last:
			err = fmt.Errorf("overlaps %s: %w", filepath.Base(wider.path), ErrCorrupt)
		default:
			wider = f
			err = s.loadRun(f)
		}
		if errors.Is(err, ErrCorrupt) {
			s.log.Warn("index run is damaged and will be made anew from its packs", "file", filepath.Base(f.path), "error", err)
			err = os.Remove(f.path)
			removed = true
		}
		if err != nil {
			return fmt.Errorf("index %s: %w", filepath.Base(f.path), err)
		}
	}
	if removed {
		return syncDir(s.indexDir())
	}
	return nil
}

func (s *Store) loadRun(f *indexFile) error {
	run, err := openIndexRun(f.path)
	if err != nil {
		return err
	}
	if run.first != f.first || run.last != f.last {
		return errors.Join(fmt.Errorf("is about packs %x to %x: %w", run.first, run.last, ErrCorrupt), run.close())
	}
	s.index.runs = append(s.index.runs, run)
	return nil
}
