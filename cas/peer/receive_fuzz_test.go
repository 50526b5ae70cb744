package peer

import (
	"bytes"
	"testing"

	"skerry.internal/cas"
)

// FuzzAnswer takes answers of any bytes apart: what is accepted was asked for,
// once, and is what its digest says.
func FuzzAnswer(f *testing.F) {
	o := newOneFile(bytes.Repeat([]byte("content "), 100))
	dir := record(3, 0, o.root, uint64(len(o.dir)), o.dir)
	blob := record(1, 0, o.blob, uint64(len(o.content)), o.content)
	f.Add(append(bytes.Clone(dir), blob...), uint16(70))
	f.Add(append(bytes.Clone(blob), dir...), uint16(1))
	f.Add(append(bytes.Clone(blob), blob...), uint16(1000))
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		p := &puller{opt: PullOptions{}.withDefaults()}
		seen := map[cas.Digest]bool{}
		r := &receiver{p: p, expected: map[cas.Digest]cas.Ref{
			o.root: {Kind: cas.KindDirectory, Digest: o.root, Size: -1},
			o.blob: {Kind: cas.KindBlob, Digest: o.blob, Size: int64(len(o.content))},
		}, accept: func(a arrival) error {
			if seen[a.ref.Digest] || a.ref.Digest != o.root && a.ref.Digest != o.blob || cas.DigestOf(a.content) != a.ref.Digest {
				t.Errorf("accepted %s with %d bytes", a.ref.Digest, len(a.content))
			}
			seen[a.ref.Digest] = true
			return nil
		}}
		for len(text) > 0 {
			n := min(len(text), int(size)+1)
			if err := r.slice(t.Context(), Slice{Records: text[:n]}); err != nil {
				if ReasonOf(err) == "" {
					t.Errorf("%v has no reason", err)
				}
				return
			}
			text = text[n:]
		}
		if err := r.finish(Slice{Done: &r.got}); err == nil && len(seen)+len(r.bad) != 2 {
			t.Errorf("%d were accepted, %d were bad", len(seen), len(r.bad))
		}
	})
}
