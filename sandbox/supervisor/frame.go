package supervisor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stream tells standard output from standard error.
type Stream uint8

// The streams of a log.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

const (
	frameHeaderSize = 16
	frameVersion    = 1
	// maxFrame bounds a frame's payload: what one read of a pipe gives.
	maxFrame      = 64 << 10
	segmentSuffix = ".seg"
)

// frameHeader precedes each payload in a segment: little endian {u32 length,
// u8 stream, u8 version, 2 zero bytes, i64 Unix nanoseconds}.
type frameHeader struct {
	length uint32
	stream Stream
	nanos  int64
}

func (h frameHeader) put(b []byte) {
	binary.LittleEndian.PutUint32(b, h.length)
	b[4] = byte(h.stream)
	b[5] = frameVersion
	b[6], b[7] = 0, 0
	binary.LittleEndian.PutUint64(b[8:], uint64(h.nanos))
}

func parseFrameHeader(b []byte) (frameHeader, error) {
	h := frameHeader{
		length: binary.LittleEndian.Uint32(b),
		stream: Stream(b[4]),
		nanos:  int64(binary.LittleEndian.Uint64(b[8:])),
	}
	if b[5] != frameVersion || h.length == 0 || h.length > maxFrame || (h.stream != Stdout && h.stream != Stderr) {
		return h, fmt.Errorf("log frame: version %d, stream %d, length %d", b[5], b[4], h.length)
	}
	return h, nil
}

func (h frameHeader) time() time.Time { return time.Unix(0, h.nanos) }

// segmentName is the 16 hex digits of the cursor at which the segment starts.
func segmentName(start uint64) string {
	return fmt.Sprintf("%016x%s", start, segmentSuffix)
}

// listSegments gives the start cursors of the segments in dir, in order.
func listSegments(dir string) ([]uint64, error) {
	d, err := os.Open(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list log: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list log: %w", err)
	}
	var starts []uint64
	for _, name := range names {
		hex, ok := strings.CutSuffix(name, segmentSuffix)
		if !ok || len(hex) != 16 {
			continue
		}
		if start, err := strconv.ParseUint(hex, 16, 64); err == nil {
			starts = append(starts, start)
		}
	}
	slices.Sort(starts)
	return starts, nil
}

func segmentPath(dir string, start uint64) string {
	return filepath.Join(dir, segmentName(start))
}
