package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Kind says what a record was written as. It is a hint for collection and
// recovery: an object's identity is its digest alone.
type Kind uint8

// The kinds of record.
const (
	KindBlob      Kind = 1
	KindChunkList Kind = 2
	KindDirectory Kind = 3
	KindCommit    Kind = 4
)

type codec uint8

const (
	codecRaw  codec = 0
	codecZstd codec = 1
)

const (
	recordHeaderSize = 64
	// maxObjectSize bounds one object, stored or not, and so what a damaged
	// or hostile header can make a reader allocate.
	maxObjectSize = 1 << 30
)

var (
	recordMagic = [4]byte{'S', 'K', 'R', 1}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)

	errRecordMagic  = errors.New("record magic is wrong")
	errRecordCRC    = errors.New("record header checksum is wrong")
	errRecordFields = errors.New("record header has impossible fields")
)

// checksum is the CRC-32C of b.
func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// appendChecksum appends the CRC-32C of b to it, little-endian.
func appendChecksum(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, checksum(b)) }

// cutChecksum takes the checksum off the end of b, and reports whether it is
// right.
func cutChecksum(b []byte) ([]byte, bool) {
	if len(b) < 4 {
		return nil, false
	}
	body := b[:len(b)-4]
	return body, checksum(body) == binary.LittleEndian.Uint32(b[len(body):])
}

// recordHeader precedes each object in a pack.
type recordHeader struct {
	kind       Kind
	codec      codec
	digest     Digest
	size       uint64 // uncompressed
	stored     uint64 // bytes that follow the header
	payloadCRC uint32 // CRC-32C of those bytes
}

// put writes h into b[:recordHeaderSize].
func (h *recordHeader) put(b []byte) {
	copy(b, recordMagic[:])
	b[4], b[5], b[6], b[7] = byte(h.kind), byte(h.codec), 0, 0
	copy(b[8:40], h.digest.sum[:])
	binary.LittleEndian.PutUint64(b[40:], h.size)
	binary.LittleEndian.PutUint64(b[48:], h.stored)
	binary.LittleEndian.PutUint32(b[56:], h.payloadCRC)
	binary.LittleEndian.PutUint32(b[60:], checksum(b[:60]))
}

// parseRecordHeader reads and checks b[:recordHeaderSize].
func parseRecordHeader(b []byte) (recordHeader, error) {
	var h recordHeader
	if len(b) < recordHeaderSize || [4]byte(b[:4]) != recordMagic {
		return h, errRecordMagic
	}
	if checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return h, errRecordCRC
	}
	h.kind, h.codec = Kind(b[4]), codec(b[5])
	copy(h.digest.sum[:], b[8:40])
	h.size = binary.LittleEndian.Uint64(b[40:])
	h.stored = binary.LittleEndian.Uint64(b[48:])
	h.payloadCRC = binary.LittleEndian.Uint32(b[56:])
	return h, h.check(b[6], b[7])
}

func (h *recordHeader) check(reserved0, reserved1 byte) error {
	ok := h.kind >= KindBlob && h.kind <= KindCommit && h.codec <= codecZstd &&
		h.size <= maxObjectSize && h.stored <= maxObjectSize &&
		(h.codec != codecRaw || h.size == h.stored) && reserved0 == 0 && reserved1 == 0
	if !ok {
		return errRecordFields
	}
	return nil
}

// open checks payload against h and returns the content, which may alias
// payload.
func (h *recordHeader) open(payload []byte) ([]byte, error) {
	if uint64(len(payload)) != h.stored || checksum(payload) != h.payloadCRC {
		return nil, errors.New("payload checksum is wrong")
	}
	content, err := decompress(h.codec, payload, h.size)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if DigestOf(content) != h.digest {
		return nil, errors.New("content does not match its digest")
	}
	return content, nil
}
