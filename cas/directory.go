package cas

import (
	"context"
	"fmt"
	"sort"
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

const (
	maxName       = 4095
	maxTarget     = 1 << 16
	dirVersion    = 1
	permMask      = 0o777
	dirFlagRoot   = 1 << 0
	dirFlagXattrs = 1 << 1 // of the root itself
	typeXattrs    = 1 << 7 // beside a type: attributes follow the entry
	fileChunked   = 1 << 0
	fileLinked    = 1 << 1
	fileSparse    = 1 << 2
	fileUnstable  = 1 << 3
	fileFlagsKnow = fileChunked | fileLinked | fileSparse | fileUnstable
)

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

// Directory is a directory object. Entries and Skipped are sorted by the
// bytes of their names, which are all different.
type Directory struct {
	Root    bool      // whether Mode and MTime are kept here: only at a tree's root
	Mode    uint32    // other directories have theirs in their parent's entry
	MTime   time.Time // likewise
	Xattrs  []Xattr   // likewise
	Entries []Entry
	Skipped []SkippedName
}

// find returns the entry called name.
func (d *Directory) find(name string) (Entry, bool) {
	i := sort.Search(len(d.Entries), func(i int) bool { return d.Entries[i].Name >= name })
	if i < len(d.Entries) && d.Entries[i].Name == name {
		return d.Entries[i], true
	}
	return Entry{}, false
}

// marshal returns the one encoding of d, or an error if d breaks a rule.
func (d *Directory) marshal() ([]byte, error) {
	e := &encoder{b: make([]byte, 0, 64+96*len(d.Entries))}
	e.b = append(e.b, 'S', 'K', 'D', dirVersion)
	d.encodeRoot(e)
	e.uvarint(uint64(len(d.Entries)))
	for i := range d.Entries {
		d.Entries[i].encode(e)
	}
	e.uvarint(uint64(len(d.Skipped)))
	for _, s := range d.Skipped {
		e.str(s.Name)
		e.u8(byte(s.Kind))
		e.u8(byte(s.Reason))
	}
	return e.b, d.check()
}

func (d *Directory) encodeRoot(e *encoder) {
	switch {
	case !d.Root:
		e.u8(0)
		return
	case len(d.Xattrs) > 0:
		e.u8(dirFlagRoot | dirFlagXattrs)
	default:
		e.u8(dirFlagRoot)
	}
	e.uvarint(uint64(d.Mode))
	e.time(d.MTime)
	if len(d.Xattrs) > 0 {
		encodeXattrs(e, d.Xattrs)
	}
}

func (d *Directory) decodeRoot(b *decoder) {
	flags := b.u8("directory flags")
	if flags == 0 {
		return
	}
	if flags&^dirFlagXattrs != dirFlagRoot {
		b.fail("directory flags")
		return
	}
	d.Root, d.Mode, d.MTime = true, uint32(b.upTo(permMask, "root mode")), b.time("root mtime")
	if flags&dirFlagXattrs != 0 {
		d.Xattrs = decodeXattrs(b)
	}
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

// parseDirectory reads a directory object strictly.
func parseDirectory(b []byte) (*Directory, error) {
	d := &decoder{b: b}
	d.magic('D', dirVersion, "directory")
	dir := &Directory{}
	dir.decodeRoot(d)
	n := d.count(6, "number of entries")
	dir.Entries = make([]Entry, 0, min(n, 4096))
	for i := 0; i < n && d.err == nil; i++ {
		dir.Entries = append(dir.Entries, decodeEntry(d))
	}
	n = d.count(4, "number of skipped entries")
	for i := 0; i < n && d.err == nil; i++ {
		dir.Skipped = append(dir.Skipped, SkippedName{
			d.str(maxName, "skipped name"), SkipKind(d.u8("skipped kind")), SkipReason(d.u8("skip reason"))})
	}
	if err := d.end("directory"); err != nil {
		return nil, err
	}
	return dir, dir.check()
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

// check holds the rules that both encoding and decoding rely on.
func (d *Directory) check() error {
	if d.Mode&^permMask != 0 || !d.Root && (d.Mode != 0 || !d.MTime.IsZero() || len(d.Xattrs) > 0) {
		return fmt.Errorf("directory: mode %o: %w", d.Mode, ErrInvalid)
	}
	if !checkXattrs(d.Xattrs) {
		return fmt.Errorf("directory: attributes of the root: %w", ErrInvalid)
	}
	names := make(map[string]bool, len(d.Skipped))
	for i, s := range d.Skipped {
		if err := checkName(s.Name); err != nil {
			return err
		}
		if i > 0 && d.Skipped[i-1].Name >= s.Name || s.Kind == 0 || s.Kind > SkipOther || s.Reason == 0 || s.Reason > SkipTooDeep {
			return fmt.Errorf("directory: skipped %q: %w", s.Name, ErrInvalid)
		}
		names[s.Name] = true
	}
	for i := range d.Entries {
		x := &d.Entries[i]
		if i > 0 && d.Entries[i-1].Name >= x.Name || len(names) > 0 && names[x.Name] {
			return fmt.Errorf("directory: name %q out of order: %w", x.Name, ErrInvalid)
		}
		if err := x.check(); err != nil {
			return err
		}
	}
	return nil
}

func (x *Entry) check() error {
	if err := checkName(x.Name); err != nil {
		return err
	}
	bad := x.Mode&^permMask != 0 || x.Size < 0 || !checkXattrs(x.Xattrs)
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

// ReadDir returns the directory object that tree names.
func (s *Store) ReadDir(ctx context.Context, tree Digest) (*Directory, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.readDir(tree)
}

func (s *Store) readDir(tree Digest) (*Directory, error) {
	b, err := s.get(tree)
	if err != nil {
		return nil, err
	}
	dir, err := parseDirectory(b)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", tree, err)
	}
	return dir, nil
}
