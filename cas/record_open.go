package cas

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// RecordHeaderSize is the length in bytes of what precedes an object's stored
// bytes in a pack.
const RecordHeaderSize = recordHeaderSize

// RecordHeader is the head of a pack record that came from elsewhere. Nothing
// in it is true before Open has succeeded.
type RecordHeader struct{ h recordHeader }

// ParseRecordHeader reads and checks the first RecordHeaderSize bytes of b.
func ParseRecordHeader(b []byte) (RecordHeader, error) {
	h, err := parseRecordHeader(b)
	if err != nil {
		return RecordHeader{}, fmt.Errorf("%w: %w", err, ErrCorrupt)
	}
	if h.codec == codecZstd && h.stored >= h.size {
		return RecordHeader{}, fmt.Errorf("compressed record is longer than its content: %w", ErrCorrupt)
	}
	return RecordHeader{h}, nil
}

// Digest is that of the uncompressed content.
func (r RecordHeader) Digest() Digest { return r.h.digest }

// Size is that of the uncompressed content, in bytes.
func (r RecordHeader) Size() int64 { return int64(r.h.size) }

// StoredSize is how many bytes follow the header.
func (r RecordHeader) StoredSize() int64 { return int64(r.h.stored) }

// Holds reports whether payload has the header's length and checksum, which
// tells damage from what Open accepted, but not a forgery.
func (r RecordHeader) Holds(payload []byte) bool {
	return uint64(len(payload)) == r.h.stored && checksum(payload) == r.h.payloadCRC
}

// strictDecoder never writes beyond the room that it is given: a frame that
// holds more than it says, or is followed by others, fails early.
var strictDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(maxObjectSize), zstd.WithDecoderLowmem(true))
})

// Open returns the content that payload holds, which may alias payload, after
// it was checked against checksum, size and digest. It uses Size bytes of
// memory at most; the caller bounds Size first. Failures are ErrCorrupt.
func (r RecordHeader) Open(payload []byte) ([]byte, error) {
	content, err := r.open(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrCorrupt)
	}
	return content, nil
}

func (r RecordHeader) open(payload []byte) ([]byte, error) {
	if !r.Holds(payload) {
		return nil, errors.New("payload checksum is wrong")
	}
	content := payload
	if r.h.codec == codecZstd {
		var err error
		if content, err = r.inflate(payload); err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
	}
	if DigestOf(content) != r.h.digest {
		return nil, errors.New("content does not match its digest")
	}
	return content, nil
}

func (r RecordHeader) inflate(payload []byte) ([]byte, error) {
	var frame zstd.Header
	if err := frame.Decode(payload); err != nil {
		return nil, err
	}
	if frame.Skippable || !frame.HasFCS || frame.FrameContentSize != r.h.size {
		return nil, fmt.Errorf("frame holds %d bytes, the record says %d", frame.FrameContentSize, r.h.size)
	}
	dec, err := strictDecoder()
	if err != nil {
		return nil, err
	}
	out, err := dec.DecodeAll(payload, make([]byte, 0, r.h.size))
	if err == nil && uint64(len(out)) != r.h.size {
		err = fmt.Errorf("frame holds %d bytes, the record says %d", len(out), r.h.size)
	}
	return out, err
}
