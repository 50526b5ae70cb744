package cas

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genDigest() *rapid.Generator[Digest] {
	return rapid.Custom(func(t *rapid.T) Digest {
		return DigestOf([]byte{rapid.Byte().Draw(t, "digest")})
	})
}

func genName() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.Byte().Filter(func(c byte) bool { return c != 0 && c != '/' }), 1, 6).Draw(t, "name")
		if s := string(b); s != "." && s != ".." {
			return s
		}
		return "dots"
	})
}

func genTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		sec := rapid.Int64Range(-1<<40, 1<<40).Draw(t, "sec")
		return time.Unix(sec, rapid.Int64Range(0, 999_999_999).Draw(t, "nsec"))
	})
}

func genEntry(name string) *rapid.Generator[Entry] {
	return rapid.Custom(func(t *rapid.T) Entry {
		x := Entry{Name: name, Mode: rapid.Uint32Range(0, 0o777).Draw(t, "mode"), MTime: genTime().Draw(t, "mtime")}
		x.Type = rapid.SampledFrom([]EntryType{TypeFile, TypeDir, TypeSymlink}).Draw(t, "type")
		switch x.Type {
		case TypeSymlink:
			x.Target = rapid.StringN(1, 20, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }).Draw(t, "target")
		case TypeDir:
			x.Digest = genDigest().Draw(t, "digest")
			x.Xattrs = genXattrs().Draw(t, "attributes")
		case TypeFile:
			fillFile(t, &x)
			x.Xattrs = genXattrs().Draw(t, "attributes")
		}
		return x
	})
}

func genXattrs() *rapid.Generator[[]Xattr] {
	return rapid.Custom(func(t *rapid.T) (list []Xattr) {
		names := rapid.SliceOfNDistinct(genName(), 0, 3, rapid.ID[string]).Draw(t, "attributes")
		slices.Sort(names)
		for _, name := range names {
			list = append(list, Xattr{"user." + name, string(rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "value"))})
		}
		return list
	})
}

func fillFile(t *rapid.T, x *Entry) {
	x.Digest = genDigest().Draw(t, "digest")
	x.Size = rapid.Int64Range(0, 1<<40).Draw(t, "size")
	x.LinkGroup = rapid.Uint64Range(0, 3).Draw(t, "group")
	x.Unstable = rapid.Bool().Draw(t, "unstable")
	if rapid.Bool().Draw(t, "chunked") {
		x.Chunks = genDigest().Draw(t, "chunks")
	}
	if x.Sparse = rapid.Bool().Draw(t, "sparse"); !x.Sparse {
		return
	}
	for at := int64(0); at+2 < x.Size && rapid.Bool().Draw(t, "another extent"); {
		off := rapid.Int64Range(at+1, x.Size-1).Draw(t, "offset")
		length := rapid.Int64Range(1, x.Size-off).Draw(t, "length")
		x.Extents = append(x.Extents, Extent{off, length})
		at = off + length
	}
}

func genDirectory() *rapid.Generator[*Directory] {
	return rapid.Custom(func(t *rapid.T) *Directory {
		d := &Directory{Root: rapid.Bool().Draw(t, "root"), Entries: []Entry{}}
		if d.Root {
			d.Mode, d.MTime, d.Xattrs = 0o750, genTime().Draw(t, "root mtime"), genXattrs().Draw(t, "root attributes")
		}
		names := rapid.SliceOfNDistinct(genName(), 0, 8, rapid.ID[string]).Draw(t, "names")
		slices.Sort(names)
		for _, name := range names {
			if rapid.IntRange(0, 5).Draw(t, "skip") == 0 {
				d.Skipped = append(d.Skipped, SkippedName{name, SkipFIFO, SkipSpecial})
			} else {
				d.Entries = append(d.Entries, genEntry(name).Draw(t, "entry"))
			}
		}
		return d
	})
}

func TestDirectoryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDirectory().Draw(t, "directory")
		b, err := d.marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseDirectory(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, d) {
			t.Fatalf("got %+v, want %+v", got, d)
		}
	})
}

func TestDirectoryRefuses(t *testing.T) {
	file := func(name string) Entry { return Entry{Name: name, Type: TypeFile, Digest: DigestOf(nil)} }
	for name, d := range map[string]*Directory{
		"dot dot":        {Entries: []Entry{file("..")}},
		"dot":            {Entries: []Entry{file(".")}},
		"slash":          {Entries: []Entry{file("a/b")}},
		"NUL":            {Entries: []Entry{file("a\x00")}},
		"empty name":     {Entries: []Entry{file("")}},
		"twice":          {Entries: []Entry{file("a"), file("a")}},
		"out of order":   {Entries: []Entry{file("b"), file("a")}},
		"also skipped":   {Entries: []Entry{file("a")}, Skipped: []SkippedName{{"a", SkipFIFO, SkipSpecial}}},
		"set-uid":        {Entries: []Entry{{Name: "a", Type: TypeFile, Digest: DigestOf(nil), Mode: 0o4755}}},
		"no digest":      {Entries: []Entry{{Name: "a", Type: TypeDir}}},
		"no target":      {Entries: []Entry{{Name: "a", Type: TypeSymlink}}},
		"unknown type":   {Entries: []Entry{{Name: "a", Type: 9}}},
		"mode, not root": {Mode: 0o755},
		"trusted":        {Entries: []Entry{withXattrs(Xattr{"trusted.a", "x"})}},
		"no attribute":   {Entries: []Entry{withXattrs(Xattr{"user.", "x"})}},
		"attribute NUL":  {Entries: []Entry{withXattrs(Xattr{"user.a\x00", "x"})}},
		"one twice":      {Entries: []Entry{withXattrs(Xattr{"user.a", "x"}, Xattr{"user.a", "y"})}},
		"too large":      {Entries: []Entry{withXattrs(Xattr{"user.a", strings.Repeat("x", maxXattrBytes)})}},
		"too many":       {Entries: []Entry{withXattrs(make([]Xattr, maxXattrs+1)...)}},
		"of a symlink":   {Entries: []Entry{{Name: "a", Type: TypeSymlink, Target: "x", Xattrs: []Xattr{{"user.a", ""}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := d.marshal()
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("marshal: %v", err)
			}
			if _, err := parseDirectory(b); err == nil && name != "mode, not root" {
				t.Error("parse accepted it")
			}
		})
	}
	if _, err := parseDirectory([]byte("SKD\x02")); !errors.Is(err, ErrVersion) {
		t.Errorf("newer version: %v", err)
	}
}

func withXattrs(list ...Xattr) Entry {
	return Entry{Name: "a", Type: TypeFile, Digest: DigestOf(nil), Xattrs: list}
}

// TestDirectoryWithoutXattrs: what has none is encoded as it was before they
// were kept, so that equal trees keep their digests.
func TestDirectoryWithoutXattrs(t *testing.T) {
	d := &Directory{Root: true, Mode: 0o755, MTime: time.Unix(1, 2), Entries: []Entry{
		{Name: "a", Type: TypeFile, Mode: 0o644, MTime: time.Unix(3, 4), Size: 0, Digest: DigestOf(nil)},
		{Name: "b", Type: TypeDir, Mode: 0o700, MTime: time.Unix(5, 6), Digest: DigestOf(nil)},
		{Name: "c", Type: TypeSymlink, Mode: 0o777, MTime: time.Unix(7, 8), Target: "x"}}}
	sum := string(DigestOf(nil).Bytes())
	want := "SKD\x01\x01\xed\x03\x02\x02\x03" + "\x01a\x01\xa4\x03\x06\x04\x00\x00" + sum +
		"\x01b\x02\xc0\x03\x0a\x06" + sum + "\x01c\x03\xff\x03\x0e\x08\x01x" + "\x00"
	b, err := d.marshal()
	if err != nil || string(b) != want {
		t.Fatalf("%v\n%x, want\n%x", err, b, want)
	}
	if got, err := parseDirectory([]byte(want)); err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCommitRoundTrip(t *testing.T) {
	for _, c := range []Commit{
		{Head: "h", Tree: DigestOf(nil), Time: time.Unix(1, 2)},
		{Head: "ws_\xff", Tree: DigestOf(nil), Parent: DigestOf([]byte("p")), ParentTree: DigestOf([]byte("t")), Epoch: 7, Seq: 1 << 40,
			Time: time.Unix(-5, 999_999_999), Source: "execution:ex_1", Stats: TreeStats{1, 2, 3, 4, 5}},
	} {
		b, err := c.marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseCommit(b); err != nil || got != c {
			t.Errorf("got %+v, %v; want %+v", got, err, c)
		}
	}
}

func TestDigestText(t *testing.T) {
	d := DigestOf([]byte("abc"))
	const want = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if d.String() != want {
		t.Errorf("String: %s", d)
	}
	for _, s := range []string{want, strings.TrimPrefix(want, "sha256:")} {
		if got, err := ParseDigest(s); err != nil || got != d {
			t.Errorf("parse %s: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "sha256:", want[:70], want + "0", "sha1:" + want[7:], strings.Replace(want, "ba", "zz", 1)} {
		if _, err := ParseDigest(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("parse %q: %v", s, err)
		}
	}
	var back Digest
	text, _ := d.MarshalText()
	if err := back.UnmarshalText(text); err != nil || back != d {
		t.Errorf("text round trip: %s, %v", back, err)
	}
	if zero := (Digest{}); !zero.IsZero() || zero.String() != "" || back.UnmarshalText(nil) != nil || !back.IsZero() {
		t.Error("zero digest")
	}
}

// FuzzDirectory: what parses is the one encoding of what it means.
func FuzzDirectory(f *testing.F) {
	seed, _ := (&Directory{Root: true, Mode: 0o755, MTime: time.Unix(1, 2), Entries: []Entry{
		{Name: "a", Type: TypeFile, Size: 9, Digest: DigestOf(nil), Chunks: DigestOf(nil), LinkGroup: 3, Sparse: true, Extents: []Extent{{1, 2}}},
		{Name: "b", Type: TypeDir, Digest: DigestOf(nil), Xattrs: []Xattr{{"user.b", "value"}}}, {Name: "c", Type: TypeSymlink, Target: "x"}},
		Xattrs: []Xattr{{"user.\xff", ""}}, Skipped: []SkippedName{{"d", SkipFIFO, SkipSpecial}}}).marshal()
	f.Add(seed)
	f.Add([]byte("SKD\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDirectory(b)
		if err != nil {
			return
		}
		again, err := d.marshal()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x parses to %+v, which encodes to %x, %v", b, d, again, err)
		}
	})
}

// FuzzCommit: likewise.
func FuzzCommit(f *testing.F) {
	c := Commit{Head: "h", Tree: DigestOf(nil), Parent: DigestOf(nil), ParentTree: DigestOf(nil), Time: time.Unix(1, 0), Source: "s"}
	seed, _ := c.marshal()
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCommit(b)
		if err != nil {
			return
		}
		if again, err := c.marshal(); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x encodes to %x, %v", b, again, err)
		}
	})
}

// FuzzChunkList: likewise.
func FuzzChunkList(f *testing.F) {
	list := &chunkList{whole: DigestOf(nil)}
	list.add(DigestOf([]byte("a")), 5)
	f.Add(list.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseChunkList(b)
		if err == nil && !bytes.Equal(c.marshal(), b) {
			t.Fatalf("%x encodes to %x", b, c.marshal())
		}
	})
}

// FuzzRecord: a scanner of any bytes ends, and what it calls good is good.
func FuzzRecord(f *testing.F) {
	content := bytes.Repeat([]byte("record "), 200)
	c, payload := compress(content)
	h := recordHeader{kind: KindBlob, codec: c, digest: DigestOf(content), size: uint64(len(content)), stored: uint64(len(payload))}
	f.Add(encodeRecord(h, payload))
	f.Add(append([]byte("junk"), encodeRecord(h, payload)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		sc := newPackScanner(bytes.NewReader(b), 0, int64(len(b)))
		err := sc.scanAll(func(rec scanned) error {
			if rec.off < 0 || rec.off+recordHeaderSize+int64(rec.header.stored) > int64(len(b)) {
				return fmt.Errorf("record at %d lies outside", rec.off)
			}
			if content, err := rec.header.open(rec.payload); err == nil && DigestOf(content) != rec.header.digest {
				return errors.New("opened content has another digest")
			}
			return nil
		}, func(*damage) {})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func encodeRecord(h recordHeader, payload []byte) []byte {
	w := &packWriter{maxSize: 1 << 20, index: newObjectIndex()}
	h.payloadCRC = checksum(payload)
	if err := w.write(&h, payload); err != nil {
		panic(err)
	}
	return w.buf
}

// FuzzStatCache: a damaged cache never does more than fail to load.
func FuzzStatCache(f *testing.F) {
	root := &dirNode{digest: DigestOf(nil), entries: []node{{name: "a", id: statID{mode: 0o100644}, digest: DigestOf(nil)}}}
	b := encodeStatCache([16]byte{1}, "k", root)
	f.Add(b[:len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = appendChecksum(bytes.Clone(b))
		if root, err := decodeStatCache(b, [16]byte{1}, "k"); err == nil && root == nil {
			t.Fatal("neither a tree nor an error")
		}
	})
}
