package peer

import (
	"hash/maphash"

	"skerry.internal/cas"
)

// keySet remembers objects by a 64-bit hash under a secret seed, 12 to 24
// bytes each. That an object which is not in it seems to be has, for a
// million entries, a chance of 1 in 2^44.
type keySet struct {
	seed  maphash.Seed
	slots []uint64 // open addressing; 0 is free
	count int
}

func newKeySet() *keySet { return &keySet{seed: maphash.MakeSeed(), slots: make([]uint64, 64)} }

func (s *keySet) key(w wanted) uint64 {
	return max(1, maphash.Comparable(s.seed, w))
}

// place answers where k is or belongs.
func (s *keySet) place(k uint64) int {
	mask := len(s.slots) - 1
	i := int(k) & mask
	for s.slots[i] != 0 && s.slots[i] != k {
		i = (i + 1) & mask
	}
	return i
}

func (s *keySet) has(kind cas.Kind, d cas.Digest) bool {
	k := s.key(wanted{kind, d})
	return s.slots[s.place(k)] == k
}

// add reports whether the object is new.
func (s *keySet) add(kind cas.Kind, d cas.Digest) bool {
	k := s.key(wanted{kind, d})
	i := s.place(k)
	if s.slots[i] == k {
		return false
	}
	s.slots[i] = k
	if s.count++; 3*s.count > 2*len(s.slots) {
		s.grow()
	}
	return true
}

func (s *keySet) grow() {
	old := s.slots
	s.slots = make([]uint64, 2*len(old))
	for _, k := range old {
		if k != 0 {
			s.slots[s.place(k)] = k
		}
	}
}
