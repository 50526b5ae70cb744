package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	packHeaderSize = 64
	packVersion    = 1
	packSuffix     = ".pack"
)

var packMagic = [8]byte{'S', 'K', 'R', 'Y', 'P', 'A', 'C', 'K'}

// packHeader stands at the start of each pack file.
type packHeader struct {
	seq     uint64
	uuid    [16]byte // of the store
	created int64    // Unix nanoseconds; for people only
}

func (h *packHeader) marshal() []byte {
	b := make([]byte, packHeaderSize)
	copy(b, packMagic[:])
	binary.LittleEndian.PutUint32(b[8:], packVersion)
	binary.LittleEndian.PutUint64(b[16:], h.seq)
	copy(b[24:40], h.uuid[:])
	binary.LittleEndian.PutUint64(b[40:], uint64(h.created))
	binary.LittleEndian.PutUint32(b[60:], checksum(b[:60]))
	return b
}

func parsePackHeader(b []byte) (packHeader, error) {
	var h packHeader
	if len(b) < packHeaderSize || [8]byte(b[:8]) != packMagic {
		return h, fmt.Errorf("pack magic is wrong: %w", ErrCorrupt)
	}
	if checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return h, fmt.Errorf("pack header checksum is wrong: %w", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != packVersion {
		return h, &VersionError{What: "pack", Got: uint64(v), Want: packVersion}
	}
	h.seq = binary.LittleEndian.Uint64(b[16:])
	copy(h.uuid[:], b[24:40])
	h.created = int64(binary.LittleEndian.Uint64(b[40:]))
	return h, nil
}

func packName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, packSuffix) }

// listPacks returns the sequence numbers of the packs in dir, ascending.
// Files of other names are left alone.
func listPacks(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), packSuffix)
		if seq, err := strconv.ParseUint(digits, 16, 64); ok && err == nil && packName(seq) == e.Name() {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs, nil
}

// createPack makes pack seq with its header, durable in its directory before
// anything is appended to it.
func createPack(dir string, seq uint64, uuid [16]byte) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, packName(seq)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	h := packHeader{seq: seq, uuid: uuid, created: time.Now().UnixNano()}
	_, err = f.WriteAt(h.marshal(), 0)
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// readPackHeader checks that f is pack seq of the store uuid.
func readPackHeader(f *os.File, seq uint64, uuid [16]byte) error {
	b := make([]byte, packHeaderSize)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) && !unreadable(err) {
		return err
	}
	h, err := parsePackHeader(b)
	if err != nil {
		return fmt.Errorf("%s: %w", packName(seq), err)
	}
	if h.seq != seq || h.uuid != uuid {
		return fmt.Errorf("%s belongs to pack %016x of store %x: %w", packName(seq), h.seq, h.uuid, ErrCorrupt)
	}
	return nil
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
