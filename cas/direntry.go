package cas

import (
	"fmt"
	"strings"
	"time"
)

// EntryType is what a directory entry is.
type EntryType uint8

// The types of entry.
const (
	TypeFile    EntryType = 1
	TypeDir     EntryType = 2
	TypeSymlink EntryType = 3
)

// String returns "file", "dir" or "symlink".
func (t EntryType) String() string {
	switch t {
	case TypeFile:
		return "file"
	case TypeDir:
		return "dir"
	case TypeSymlink:
		return "symlink"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Extent is a range of a sparse file that holds data; the rest is holes.
type Extent struct{ Offset, Length int64 }

// Entry is one name in a directory. Name holds raw bytes, valid UTF-8 or not.
type Entry struct {
	Name  string
	Type  EntryType
	Mode  uint32 // permission bits only, at most 0o777
	MTime time.Time

	Size      int64  // of a file, in bytes
	Digest    Digest // of a file's whole content; of a directory's object
	Chunks    Digest // of the chunk list when the file is kept in chunks, else zero
	LinkGroup uint64 // equal and not zero in all names of one hard-linked file
	Sparse    bool
	Extents   []Extent // where Sparse: the data, ascending, disjoint
	Unstable  bool     // the file changed each time it was read; this is the last reading

	Target string // of a symlink, raw bytes

	Xattrs []Xattr // of a file or directory, sorted by name
}

func (x *Entry) encode(e *encoder) {
	e.str(x.Name)
	if len(x.Xattrs) > 0 {
		e.u8(byte(x.Type) | typeXattrs)
	} else {
		e.u8(byte(x.Type))
	}
	e.uvarint(uint64(x.Mode))
	e.time(x.MTime)
	switch x.Type {
	case TypeFile:
		x.encodeFile(e)
	case TypeDir:
		e.digest(x.Digest)
	case TypeSymlink:
		e.str(x.Target)
	}
	if len(x.Xattrs) > 0 {
		encodeXattrs(e, x.Xattrs)
	}
}

func (x *Entry) encodeFile(e *encoder) {
	e.uvarint(x.fileFlags())
	e.uvarint(uint64(x.Size))
	e.digest(x.Digest)
	if !x.Chunks.IsZero() {
		e.digest(x.Chunks)
	}
	if x.LinkGroup != 0 {
		e.uvarint(x.LinkGroup)
	}
	if x.Sparse {
		e.uvarint(uint64(len(x.Extents)))
		at := int64(0)
		for _, ext := range x.Extents {
			e.uvarint(uint64(ext.Offset - at))
			e.uvarint(uint64(ext.Length))
			at = ext.Offset + ext.Length
		}
	}
}

func (x *Entry) fileFlags() uint64 {
	var f uint64
	for _, flag := range []struct {
		set bool
		bit uint64
	}{{!x.Chunks.IsZero(), fileChunked}, {x.LinkGroup != 0, fileLinked}, {x.Sparse, fileSparse}, {x.Unstable, fileUnstable}} {
		if flag.set {
			f |= flag.bit
		}
	}
	return f
}

func decodeEntry(d *decoder) Entry {
	name, kind := d.str(maxName, "name"), d.u8("type")
	x := Entry{
		Name: name, Type: EntryType(kind &^ typeXattrs),
		Mode: uint32(d.upTo(permMask, "mode")), MTime: d.time("mtime"),
	}
	switch x.Type {
	case TypeFile:
		decodeFile(d, &x)
	case TypeDir:
		x.Digest = d.digest("directory digest")
	case TypeSymlink:
		x.Target = d.str(maxTarget, "target")
	default:
		d.fail("type")
	}
	if kind&typeXattrs != 0 {
		x.Xattrs = decodeXattrs(d)
	}
	return x
}

func decodeFile(d *decoder, x *Entry) {
	flags := d.upTo(fileFlagsKnow, "file flags")
	x.Size = int64(d.upTo(1<<63-1, "size"))
	x.Digest = d.digest("file digest")
	if flags&fileChunked != 0 {
		x.Chunks = d.digest("chunk list digest")
	}
	if flags&fileLinked != 0 {
		x.LinkGroup = d.uvarint("link group")
	}
	if flags&fileSparse != 0 {
		x.Sparse = true
		decodeExtents(d, x)
	}
	x.Unstable = flags&fileUnstable != 0
	if x.fileFlags() != flags {
		d.fail("file flags")
	}
}

func decodeExtents(d *decoder, x *Entry) {
	n := d.count(2, "number of extents")
	at := uint64(0)
	for i := 0; i < n && d.err == nil; i++ {
		gap := d.upTo(uint64(x.Size)-at, "extent offset")
		length := d.upTo(uint64(x.Size)-at-gap, "extent length")
		if length == 0 || gap == 0 && i > 0 {
			d.fail("extent")
			return
		}
		x.Extents = append(x.Extents, Extent{int64(at + gap), int64(length)})
		at += gap + length
	}
}

func (x *Entry) check() error {
	if err := checkName(x.Name); err != nil {
		return err
	}
	bad := x.Mode&^permMask != 0 || x.Size < 0 || !ValidXattrs(x.Xattrs)
	switch x.Type {
	case TypeFile:
		bad = bad || x.Digest.IsZero() || x.Target != ""
	case TypeDir:
		bad = bad || x.Digest.IsZero() || x.Target != ""
	case TypeSymlink:
		bad = bad || len(x.Xattrs) > 0 || x.Target == "" || strings.IndexByte(x.Target, 0) >= 0 || len(x.Target) > maxTarget
	default:
		bad = true
	}
	if bad {
		return fmt.Errorf("directory: entry %q: %w", x.Name, ErrInvalid)
	}
	return nil
}

// checkName refuses what no directory can hold and what would lead out of it.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("directory: name %.100q: %w", name, ErrInvalid)
	}
	return nil
}
