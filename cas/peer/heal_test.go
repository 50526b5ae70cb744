package peer

import (
	"os"
	"path/filepath"
	"testing"

	"skerry.internal/cas"
)

// TestPullAgainHeals: after damage or a loss was met, the same pull under the
// same pin fetches what is lacking, though the pin keeps that very tree.
func TestPullAgainHeals(t *testing.T) {
	tests := map[string]func(t *testing.T, packs string, rebuild func()){
		"bit flipped": func(t *testing.T, packs string, _ func()) {
			path := filepath.Join(packs, "0000000000000001.pack")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"pack lost": func(t *testing.T, packs string, _ func()) {
			if err := os.Remove(filepath.Join(packs, "0000000000000002.pack")); err != nil {
				t.Fatal(err)
			}
		},
		"pack lost, index made anew": func(t *testing.T, packs string, rebuild func()) {
			if err := os.Remove(filepath.Join(packs, "0000000000000002.pack")); err != nil {
				t.Fatal(err)
			}
			rebuild()
		},
	}
	for name, harm := range tests {
		t.Run(name, func(t *testing.T) {
			from, dir := openStore(t), filepath.Join(t.TempDir(), "rcv")
			root := snapshot(t, from, sampleTree(t), "ws")
			server, a := newServer(t, from, Limits{})
			open := func() *cas.Store {
				s, err := cas.Open(t.Context(), dir, cas.Config{MaxPackBytes: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			pull := func(s *cas.Store) Result {
				res, err := Pull(t.Context(), s, &direct{server: server, token: a.grant(t, root)}, root, PullOptions{Pin: "p"})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			to := open()
			pull(to)
			if err := to.Close(); err != nil {
				t.Fatal(err)
			}
			harm(t, filepath.Join(dir, "packs"), func() {
				s := open()
				if err := s.Rebuild(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
			to = open()
			rep, err := to.Verify(t.Context(), cas.VerifyOptions{Reachable: true})
			if err != nil || rep.OK() || len(rep.Missing) == 0 || rep.Missing[0].Pin != "p" {
				t.Fatalf("verify %+v, %v", rep, err)
			}
			if res := pull(to); res.Bytes == 0 {
				t.Errorf("nothing was fetched: %+v", res)
			}
			collect(t, to) // takes the bad records out
			checkSame(t, from, to, root)
			if res := pull(to); res.Bytes != 0 || !to.Sound() {
				t.Errorf("fetched again: %+v", res)
			}
		})
	}
}
