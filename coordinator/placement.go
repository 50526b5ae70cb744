package coordinator

import "cmp"

// candidate is a runner that could take a new workspace.
type candidate struct {
	name            string
	running, queued uint32
}

// place chooses among the runners that are up: the least busy one, then by
// name. It is a pure function, so that a choice can be explained and repeated.
func place(candidates []candidate) (name string, ok bool) {
	var best candidate
	for i, c := range candidates {
		if i == 0 || less(c, best) {
			best = c
		}
	}
	return best.name, len(candidates) > 0
}

func less(a, b candidate) bool {
	busyA, busyB := uint64(a.running)+uint64(a.queued), uint64(b.running)+uint64(b.queued)
	return cmp.Or(cmp.Compare(busyA, busyB), cmp.Compare(a.name, b.name)) < 0
}
