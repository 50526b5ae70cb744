package cas

import (
	"fmt"
	"runtime/debug"
)

// indexFault is what the kernel could not page in of a mapped run: its file was
// cut, or the disk lost it. Then no answer of the index is to be relied on: "not
// there" would have a collection remove what is needed. The store fails until it
// is opened anew, when the run is made again of its packs.
type indexFault struct{ reason string }

func (f *indexFault) err() error {
	return fmt.Errorf("a mapped index run cannot be read (%s); reopen the store, which makes it again of its packs: %w", f.reason, ErrFailed)
}

func (x *objectIndex) fail(reason string) error {
	x.fault.CompareAndSwap(nil, &indexFault{reason})
	return x.failed()
}

// failed is the fault that was met; nil when there was none.
func (x *objectIndex) failed() error {
	if f := x.fault.Load(); f != nil {
		return f.err()
	}
	return nil
}

// findSealed looks through the mapped runs, the newest first.
func (x *objectIndex) findSealed(d Digest) (l loc, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if _, fault := p.(interface{ Addr() uintptr }); !fault {
			panic(p)
		}
		_ = x.fail(fmt.Sprint(p)) // whoever asked goes on; the store's next call does not
		l, ok = loc{}, false
	}()
	for i := len(x.runs) - 1; i >= 0; i-- {
		if l, ok := x.runs[i].find(d); ok {
			return l, true
		}
	}
	return loc{}, false
}

// onIndex runs something that reads whole runs.
func (s *Store) onIndex(fn func() error) error {
	if err := s.index.failed(); err != nil {
		return err
	}
	return guarded(s.index.fail, fn)
}
