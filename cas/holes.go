package cas

import (
	"errors"
	"sort"

	"golang.org/x/sys/unix"
)

// holes says where a sparse file of a given size has no data. The zero value
// is a file without holes.
type holes struct {
	sparse bool
	size   int64
	data   []Extent // where it has data, ascending
}

// findHoles asks the file system where a file with fewer blocks than bytes
// has its data. One that cannot tell has no holes.
func findHoles(fd int, size int64) holes {
	h := holes{sparse: true, size: size}
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= size {
			break // only a hole is left
		}
		if err != nil {
			return holes{}
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil || hole <= data {
			return holes{}
		}
		at = min(hole, size)
		h.data = append(h.data, Extent{data, at - data})
	}
	if len(h.data) == 1 && h.data[0] == (Extent{0, size}) {
		return holes{}
	}
	return h
}

// next returns the index of the first extent that ends behind off.
func (h *holes) next(off int64) int {
	return sort.Search(len(h.data), func(i int) bool { return h.data[i].Offset+h.data[i].Length > off })
}

// at returns for how many bytes there is no data from off on.
func (h *holes) at(off int64) int64 {
	if !h.sparse {
		return 0
	}
	end := h.size
	if i := h.next(off); i < len(h.data) {
		end = h.data[i].Offset
	}
	return max(0, end-off)
}

// clear zeroes what lies in holes in b, the file's bytes from off on. So the
// content that is stored has zeros there, whatever the file held by the time
// it was read: a restore is going to leave the holes out.
func (h *holes) clear(b []byte, off int64) {
	if !h.sparse {
		return
	}
	end := off + int64(len(b))
	for at, i := off, h.next(off); at < end; i++ {
		data := Extent{end, 0}
		if i < len(h.data) {
			data = h.data[i]
		}
		if data.Offset > at {
			clear(b[at-off : min(data.Offset, end)-off])
		}
		at = data.Offset + data.Length
	}
}
