package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// openStore opens a store for a test and closes it at its end.
func openStore(t testing.TB, dir string, cfg Config) *Store {
	t.Helper()
	if testing.Verbose() && cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := Open(t.Context(), dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func snapshot(t testing.TB, s *Store, dir, key string) SnapshotResult {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := s.Snapshot(t.Context(), f, SnapshotOptions{CacheKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func commit(t testing.TB, s *Store, head string, tree Digest, source string) Head {
	t.Helper()
	h, err := s.Head(t.Context(), head)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	h, err = s.Commit(t.Context(), CommitRequest{Head: head, Expect: h.Commit, Epoch: h.Epoch, Tree: tree, Source: source})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readCommitted(t testing.TB, s *Store, tree Digest, path string) []byte {
	t.Helper()
	x, err := s.Lookup(t.Context(), tree, path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenFile(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func verify(t testing.TB, s *Store) VerifyReport {
	t.Helper()
	rep, err := s.Verify(t.Context(), VerifyOptions{Reachable: true})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(b)
	return b
}

func TestObjectsSurviveReopen(t *testing.T) {
	dir := t.TempDir()
	contents := [][]byte{{}, []byte("x"), bytes.Repeat([]byte("compressible "), 10_000), randomBytes(1, 300_000), randomBytes(2, 3<<20)}
	s := openStore(t, dir, Config{MaxPackBytes: 1 << 20})
	var digests []Digest
	for _, c := range contents {
		d, err := s.PutBytes(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if d != DigestOf(c) {
			t.Fatalf("digest %s, want %s", d, DigestOf(c))
		}
		digests = append(digests, d)
	}
	check := func(s *Store) {
		for i, d := range digests {
			got, err := s.GetBytes(t.Context(), d)
			if err != nil || !bytes.Equal(got, contents[i]) {
				t.Errorf("object %d: %d bytes, %v; want %d", i, len(got), err, len(contents[i]))
			}
		}
		if rep := verify(t, s); !rep.OK() || rep.Records != int64(len(contents)) {
			t.Errorf("verify: %+v", rep)
		}
	}
	check(s) // partly out of the write buffer
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{MaxPackBytes: 1 << 20})
	check(s)
	if err := s.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(s)
	if _, err := s.GetBytes(t.Context(), DigestOf([]byte("absent"))); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent object: %v", err)
	}
}

func TestSnapshotCommitRead(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	big := randomBytes(3, 5<<20)
	writeFile(t, filepath.Join(work, "a.txt"), "alpha")
	writeFile(t, filepath.Join(work, "sub/b.txt"), "beta")
	writeFile(t, filepath.Join(work, "sub/big"), string(big))
	res := snapshot(t, s, work, "w")
	if res.Files != 3 || res.Dirs != 1 || res.Bytes != int64(9+len(big)) {
		t.Fatalf("stats %+v", res.TreeStats)
	}
	h := commit(t, s, "ws_1", res.Tree, "execution:ex_1")
	writeFile(t, filepath.Join(work, "a.txt"), "ALPHA")
	res2 := snapshot(t, s, work, "w")
	h2 := commit(t, s, "ws_1", res2.Tree, "execution:ex_2")
	if h2.Seq != h.Seq+1 || h2.Commit == h.Commit {
		t.Fatalf("heads %+v, %+v", h, h2)
	}
	if got := string(readCommitted(t, s, h.Tree, "a.txt")) + string(readCommitted(t, s, h2.Tree, "a.txt")); got != "alphaALPHA" {
		t.Errorf("contents %q", got)
	}
	if !bytes.Equal(readCommitted(t, s, h2.Tree, "sub/big"), big) {
		t.Error("chunked file differs")
	}
	log, err := s.Log(t.Context(), h2.Commit, 0)
	if err != nil || len(log) != 2 || log[0].Parent != h.Commit || log[0].ParentTree != res.Tree || log[1].Source != "execution:ex_1" {
		t.Errorf("log %+v, %v", log, err)
	}
	var changes []string
	err = s.Diff(t.Context(), h.Tree, h2.Tree, func(c Change) error {
		changes = append(changes, fmt.Sprint(c.Kind, " ", c.Path))
		return nil
	})
	if err != nil || len(changes) != 1 || changes[0] != "modified a.txt" {
		t.Errorf("diff %v, %v", changes, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Run("second process", func(t *testing.T) {
		dir := t.TempDir()
		openStore(t, dir, Config{})
		if _, err := Open(t.Context(), dir, Config{}); !errors.Is(err, ErrLocked) {
			t.Errorf("second open: %v", err)
		}
	})
	t.Run("unknown version", func(t *testing.T) {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "format"), `{"version":9,"uuid":"00000000-0000-4000-8000-000000000000"}`)
		_, err := Open(t.Context(), dir, Config{})
		var v *VersionError
		if !errors.As(err, &v) || v.Got != 9 || !errors.Is(err, ErrVersion) {
			t.Errorf("open: %v", err)
		}
	})
	t.Run("lost meta.db", func(t *testing.T) {
		dir, work := t.TempDir(), t.TempDir()
		s := openStore(t, dir, Config{})
		writeFile(t, filepath.Join(work, "f"), "x")
		want := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "a")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "meta.db")); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), dir, Config{}); !errors.Is(err, ErrMetaLost) {
			t.Fatalf("open: %v", err)
		}
		s = openStore(t, dir, Config{RecoverMeta: true})
		if got, err := s.Head(t.Context(), "ws"); err != nil || got != want {
			t.Errorf("recovered head %+v, %v; want %+v", got, err, want)
		}
	})
}

func TestClosedStore(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutBytes(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("put: %v", err)
	}
	if _, err := s.Heads(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("heads: %v", err)
	}
}

func TestCancelledSnapshot(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := s.Snapshot(ctx, f, SnapshotOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("snapshot: %v", err)
	}
}

// requireRoot skips a test that needs root, or fails it where the
// environment promises that nothing is skipped.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "needs root to change owners and users")
	}
}

func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("SKERRY_REQUIRE_PROBES") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// reexec returns a command that runs this test binary as a child with the
// role in SKERRY_CAS_CHILD.
func reexec(t *testing.T, role string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(append(os.Environ(), "SKERRY_CAS_CHILD="+role), env...)
	return cmd
}
