package peer

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"skerry.internal/cas"
)

// tb is what tests and property tests share.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func openStore(t *testing.T) *cas.Store {
	t.Helper()
	s, err := cas.Open(t.Context(), filepath.Join(t.TempDir(), "store"), cas.Config{MaxPackBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// snapshot stores dir as the next commit of head.
func snapshot(t tb, s *cas.Store, dir, head string) cas.Digest {
	t.Helper()
	ctx := context.Background()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	res, err := s.Snapshot(ctx, d, cas.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Head(ctx, head)
	if err != nil && !errors.Is(err, cas.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, cas.CommitRequest{Head: head, Expect: h.Commit, Tree: res.Tree, Source: "test", Stats: res.TreeStats}); err != nil {
		t.Fatal(err)
	}
	return res.Tree
}

// noise is n bytes that do not compress, different for each seed.
func noise(seed uint64, n int) []byte {
	out := make([]byte, 0, n+32)
	for i := uint64(0); len(out) < n; i++ {
		d := cas.DigestOf(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, seed), i))
		out = append(out, d.Bytes()...)
	}
	return out[:n]
}

func writeFile(t tb, path string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// sampleTree is small files in nested directories, text, and a chunked file.
func sampleTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for i := range 60 {
		writeFile(t, filepath.Join(dir, fmt.Sprintf("d%d/e%d/f%d", i%4, i%3, i)), noise(uint64(i), 50+i*37))
	}
	writeFile(t, filepath.Join(dir, "text"), bytes.Repeat([]byte("all work and no play "), 2000))
	writeFile(t, filepath.Join(dir, "big"), noise(1000, 3<<20))
	writeFile(t, filepath.Join(dir, "d0/empty"), nil)
	return dir
}

// authority signs grants.
type authority struct{ key ed25519.PrivateKey }

func newAuthority() *authority {
	return &authority{ed25519.NewKeyFromSeed(noise(4711, ed25519.SeedSize))}
}

func (a *authority) verifier() Verifier {
	return Verifier{Keys: []ed25519.PublicKey{a.key.Public().(ed25519.PublicKey)}, Source: "src"}
}

func (a *authority) grant(t tb, root cas.Digest, change ...func(*Grant)) string {
	t.Helper()
	g := NewGrant(root, "src", "rcv", time.Now(), time.Hour)
	for _, c := range change {
		c(&g)
	}
	token, err := g.Sign(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newServer(t *testing.T, s *cas.Store, limits Limits) (*Server, *authority) {
	t.Helper()
	a := newAuthority()
	server := NewServer(s, ServerConfig{Verifier: a.verifier(), Limits: limits})
	t.Cleanup(server.Close)
	return server, a
}

// direct is a Source that calls a Server in the same process.
type direct struct {
	server *Server
	token  string
	change func(Slice) ([]Slice, error) // what is made of each slice; nil: as it is

	mu    sync.Mutex
	asked []wanted
}

func (d *direct) Fetch(ctx context.Context, b Batch) (Stream, error) {
	d.mu.Lock()
	_ = b.each(func(w wanted) error { d.asked = append(d.asked, w); return nil })
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	s := &directStream{slices: make(chan Slice), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = d.server.Fetch(ctx, "rcv", d.token, b, func(out Slice) error {
			out.Records = slices.Clone(out.Records)
			all := []Slice{out}
			if d.change != nil {
				var err error
				if all, err = d.change(out); err != nil {
					return err
				}
			}
			for _, out := range all {
				select {
				case s.slices <- out:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}()
	return s, nil
}

type directStream struct {
	slices chan Slice
	done   chan struct{}
	cancel context.CancelFunc
	err    error
}

func (s *directStream) Next() (Slice, error) {
	select {
	case out := <-s.slices:
		return out, nil
	case <-s.done:
		if s.err != nil {
			return Slice{}, s.err
		}
		return Slice{}, io.EOF
	}
}

func (s *directStream) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// objectsOf lists what a tree is made of.
func objectsOf(t tb, s *cas.Store, root cas.Digest) map[wanted]bool {
	t.Helper()
	all := map[wanted]bool{}
	var add func(w wanted)
	add = func(w wanted) {
		if all[w] {
			return
		}
		all[w] = true
		if w.kind == cas.KindBlob {
			return
		}
		content, err := s.GetBytes(context.Background(), w.digest)
		if err != nil {
			t.Fatal(err)
		}
		refs, err := cas.References(w.kind, content)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range refs {
			add(wanted{r.Kind, r.Digest})
		}
	}
	add(wanted{cas.KindDirectory, root})
	return all
}

// checkClosed fails when a directory or chunk list of the tree is in the
// store without all that it names.
func checkClosed(t tb, s *cas.Store, objects map[wanted]bool) (present int) {
	t.Helper()
	ctx := context.Background()
	session, err := s.NewSession(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer session.End()
	for w := range objects {
		has, err := s.Has(ctx, w.digest)
		if err != nil {
			t.Fatal(err)
		}
		if !has {
			continue
		}
		present++
		if whole, err := session.Complete(ctx, w.kind, w.digest); err != nil || !whole {
			t.Fatalf("%v is in the store, complete %v, %v", w, whole, err)
		}
	}
	return present
}

// checkSame fails unless both stores restore the tree alike and the receiver's
// records are all good.
func checkSame(t *testing.T, from, to *cas.Store, root cas.Digest) {
	t.Helper()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for dir, s := range map[string]*cas.Store{a: from, b: to} {
		if _, err := s.Restore(t.Context(), root, dir, cas.RestoreOptions{UID: -1, GID: -1}); err != nil {
			t.Fatal(err)
		}
	}
	want, got := readTree(t, a), readTree(t, b)
	if len(want) == 0 || len(want) != len(got) {
		t.Fatalf("%d names, want %d", len(got), len(want))
	}
	for name, content := range want {
		if got[name] != content {
			t.Fatalf("%q differs", name)
		}
	}
	if rep, err := to.Verify(t.Context(), cas.VerifyOptions{Reachable: true}); err != nil || !rep.OK() {
		t.Fatalf("verify: %+v, %v", rep, err)
	}
}

func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), info.ModTime().UnixNano())
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(content)
		}
		name, _ := filepath.Rel(dir, path)
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The encodings of docs/cas-format.md, to make trees that no snapshot makes.

func encodeDir(entries ...[]byte) []byte {
	b := binary.AppendUvarint([]byte{'S', 'K', 'D', 1, 0}, uint64(len(entries)))
	for _, e := range entries {
		b = append(b, e...)
	}
	return append(b, 0)
}

func entryHead(name string, kind byte) []byte {
	b := binary.AppendUvarint(nil, uint64(len(name)))
	b = append(append(b, name...), kind)
	b = binary.AppendUvarint(b, 0o755)
	return append(b, 0, 0)
}

func fileEntry(name string, size uint64, content cas.Digest) []byte {
	b := binary.AppendUvarint(append(entryHead(name, 1), 0), size)
	return append(b, content.Bytes()...)
}

func dirEntry(name string, dir cas.Digest) []byte {
	return append(entryHead(name, 2), dir.Bytes()...)
}

func putBytes(t tb, s *cas.Store, content []byte) cas.Digest {
	t.Helper()
	d, err := s.PutBytes(context.Background(), content)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
