package cas

import (
	"context"
	"fmt"
	"sort"
	"time"
)

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

// check holds the rules that both encoding and decoding rely on.
func (d *Directory) check() error {
	if d.Mode&^permMask != 0 || !d.Root && (d.Mode != 0 || !d.MTime.IsZero() || len(d.Xattrs) > 0) {
		return fmt.Errorf("directory: mode %o: %w", d.Mode, ErrInvalid)
	}
	if !ValidXattrs(d.Xattrs) {
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
