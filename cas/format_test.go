package cas

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFormatDamage: a damaged format file is told from a newer one, and another
// uuid than the packs' is noticed.
func TestFormatDamage(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	uuid := s.format.UUID
	for i := range 6 {
		if _, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 100)); err != nil {
			t.Fatal(err)
		}
		must(t, s.sealOpenPack())
	}
	must(t, s.Close())
	path := filepath.Join(dir, "format")
	good, err := os.ReadFile(path)
	must(t, err)
	flipped := strings.Map(func(r rune) rune {
		switch r {
		case '3':
			return '2'
		case '2':
			return '3'
		}
		return r
	}, uuid)
	if flipped == uuid {
		flipped = strings.Repeat("a", 8) + uuid[8:]
	}
	tests := []struct {
		name, content, want string
		err                 error
	}{
		{"newer version", strings.Replace(string(good), `"version": 1`, `"version": 3`, 1), "use the build that wrote it", ErrVersion},
		{"version 0", strings.Replace(string(good), `"version": 1`, `"version": 0`, 1), "damaged", ErrCorrupt},
		{"other uuid", strings.Replace(string(good), uuid, flipped, 1), "packs are of store " + uuid, ErrCorrupt},
		{"missing", "", "there are packs", ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.content == string(good) {
				t.Fatal("nothing was changed")
			}
			must(t, os.Remove(path))
			if tt.content != "" {
				must(t, os.WriteFile(path, []byte(tt.content), 0o600))
			}
			_, err := Open(t.Context(), dir, Config{})
			must(t, os.WriteFile(path, good, 0o600))
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	f, err := os.OpenFile(onlyPack(t, dir, 6), os.O_RDWR, 0) // the header of one pack does not decide
	must(t, err)
	_, err = f.WriteAt([]byte{0xff}, 30)
	must(t, errors.Join(err, f.Close()))
	openStore(t, dir, Config{})
}
