package cas

import (
	"strings"
	"time"
)

// maxReported bounds each list in a SnapshotResult; the totals count all.
const maxReported = 1000

// Skipped is an entry of which only the name is kept.
type Skipped struct {
	Path   string // raw bytes, relative to the root
	Kind   SkipKind
	Reason SkipReason
}

// DroppedBits is an entry with set-id or sticky bits, which are not kept.
type DroppedBits struct {
	Path string
	Mode uint32 // with the bits, as stat(2) has it
}

// DroppedXattrs is an entry with extended attributes that are not kept.
type DroppedXattrs struct {
	Path   string // "" for the root
	Reason XattrLoss
}

// SnapshotResult says what a snapshot found. The lists hold at most 1000
// entries each; the totals count all.
type SnapshotResult struct {
	Tree      Digest
	TreeStats // its Skipped counts all; the field below lists them
	// NewBytes is the size of the objects that the store did not have,
	// before compression.
	NewBytes int64
	NewFiles int64 // files that were read, rather than known from the stat cache

	Skipped       []Skipped
	Unstable      []string // files that changed each time they were read
	UnstableTotal int64
	Dropped       []DroppedBits
	DroppedTotal  int64
	// DroppedXattrs lists what has access control lists, or attributes
	// "user.*" over a limit. Other attributes (security.*, trusted.*) are the
	// system's own and not counted.
	DroppedXattrs      []DroppedXattrs
	DroppedXattrsTotal int64
	// Rechecked counts the files that were read though the stat cache vouched
	// for them. CacheMismatches counts those of them that were not as it said;
	// then the cache was dropped, every file was read, and the result is of
	// that. CacheMismatch is the first one's path.
	Rechecked       int64
	CacheMismatches int64
	CacheMismatch   string

	Duration time.Duration
}

// report lists what is odd below d, whose path is above.
func (r *SnapshotResult) report(above []string, d *dirNode) {
	if d.totals.odd == 0 {
		return
	}
	for i := range d.entries {
		n := &d.entries[i]
		path := func() string { return strings.Join(append(above, n.name), "/") }
		if n.skip != 0 && len(r.Skipped) < maxReported {
			r.Skipped = append(r.Skipped, Skipped{path(), n.id.skipKind(), n.skip})
		}
		if n.unstable() {
			if r.UnstableTotal++; len(r.Unstable) < maxReported {
				r.Unstable = append(r.Unstable, path())
			}
		}
		if n.droppedBits() {
			if r.DroppedTotal++; len(r.Dropped) < maxReported {
				r.Dropped = append(r.Dropped, DroppedBits{path(), n.id.mode})
			}
		}
		if a := n.attributes(); a != nil {
			r.dropXattrs(path(), a)
		}
		if n.dir != nil {
			r.report(append(above, n.name), n.dir)
		}
	}
}

func (r *SnapshotResult) dropXattrs(path string, a *attrs) {
	if a.loss() == 0 {
		return
	}
	if r.DroppedXattrsTotal++; len(r.DroppedXattrs) < maxReported {
		r.DroppedXattrs = append(r.DroppedXattrs, DroppedXattrs{path, a.lost})
	}
}
