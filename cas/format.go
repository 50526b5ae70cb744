package cas

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const formatVersion = 1

// storeFormat is the file DIR/format: which layout the directory has.
type storeFormat struct {
	Version uint64    `json:"version"`
	UUID    string    `json:"uuid"`
	Created time.Time `json:"created"`

	uuid [16]byte
}

// openFormat reads DIR/format, or makes it when there are no packs yet.
func openFormat(dir, packDir string) (storeFormat, error) {
	path := filepath.Join(dir, "format")
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return createFormat(path, packDir)
	}
	if err != nil {
		return storeFormat{}, err
	}
	var f storeFormat
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s: %w: %w", path, err, ErrCorrupt)
	}
	if f.Version == 0 {
		return f, fmt.Errorf("%s names version 0, which there never was; it is damaged, so put it back: %w", path, ErrCorrupt)
	}
	if f.Version != formatVersion {
		return f, &VersionError{What: "store", Got: f.Version, Want: formatVersion}
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(f.UUID, "-", ""))
	if err != nil || len(raw) != len(f.uuid) {
		return f, fmt.Errorf("%s: uuid %.80q: %w", path, f.UUID, ErrCorrupt)
	}
	copy(f.uuid[:], raw)
	return f, f.matches(path, packDir)
}

// formatPacks is how many packs' headers are compared with the format file.
const formatPacks = 4

// matches compares the uuid with those in the headers of the last packs, of
// which one that agrees is enough: another may be damaged or not belong here.
func (f *storeFormat) matches(path, packDir string) error {
	seqs, err := listPacks(packDir)
	if err != nil {
		return err
	}
	var other error
	for _, seq := range seqs[max(0, len(seqs)-formatPacks):] {
		uuid, err := packUUID(filepath.Join(packDir, packName(seq)))
		if err != nil {
			continue // recovery tells
		}
		if uuid == f.uuid {
			return nil
		}
		other = fmt.Errorf("%s names store %s and the packs are of store %s; put the right one of them back: %w", path, f.UUID, uuidText(uuid), ErrCorrupt)
	}
	return other
}

// packUUID returns the store's uuid from a pack's header.
func packUUID(path string) (uuid [16]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return uuid, err
	}
	defer f.Close()
	b := make([]byte, packHeaderSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return uuid, err
	}
	h, err := parsePackHeader(b)
	return h.uuid, err
}

func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

func createFormat(path, packDir string) (storeFormat, error) {
	f := storeFormat{Version: formatVersion, Created: time.Now().UTC()}
	seqs, err := listPacks(packDir)
	if err != nil {
		return f, err
	}
	if len(seqs) > 0 {
		return f, fmt.Errorf("%s is missing but there are packs; restore it: %w", path, ErrCorrupt)
	}
	_, _ = rand.Read(f.uuid[:]) // never fails
	f.uuid[6], f.uuid[8] = f.uuid[6]&0x0f|0x40, f.uuid[8]&0x3f|0x80
	f.UUID = uuidText(f.uuid)
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return f, err
	}
	return f, writeFileDurably(path, append(b, '\n'))
}
