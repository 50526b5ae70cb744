package cas

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	compressMin = 512      // smaller objects are stored raw
	probeWhole  = 64 << 10 // up to here the object is its own probe
	probePart   = 16 << 10
)

// The coders are made on first use: an idle daemon need not hold their tables.
var (
	zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
			zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	})
	zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
			zstd.WithDecoderMaxMemory(maxObjectSize), zstd.WithDecoderLowmem(true))
	})
)

// compress answers how content is best stored: as zstd when that saves at
// least a tenth, raw otherwise. A raw answer aliases content.
func compress(content []byte) (codec, []byte) {
	if len(content) < compressMin {
		return codecRaw, content
	}
	enc, err := zstdEncoder()
	if err != nil {
		return codecRaw, content
	}
	if len(content) > probeWhole && !saves(probe(enc, content), 2*probePart) {
		return codecRaw, content
	}
	out := enc.EncodeAll(content, make([]byte, 0, len(content)/2+64))
	if !saves(len(out), len(content)) {
		return codecRaw, content
	}
	return codecZstd, out
}

func saves(stored, size int) bool { return stored <= size-size/10 }

// probe compresses a part of the start and of the middle and returns the
// size of the result for 2*probePart bytes.
func probe(enc *zstd.Encoder, content []byte) int {
	sample := make([]byte, 0, 2*probePart)
	sample = append(sample, content[:probePart]...)
	sample = append(sample, content[len(content)/2:][:probePart]...)
	return len(enc.EncodeAll(sample, make([]byte, 0, 2*probePart)))
}

// decompress returns exactly size bytes or an error; raw content aliases
// payload.
func decompress(c codec, payload []byte, size uint64) ([]byte, error) {
	switch c {
	case codecRaw:
		return payload, nil
	case codecZstd:
		return unzstd(payload, size)
	default:
		return nil, fmt.Errorf("codec %d: %w", c, ErrVersion)
	}
}

func unzstd(payload []byte, size uint64) ([]byte, error) {
	dec, err := zstdDecoder()
	if err != nil {
		return nil, err
	}
	var frame zstd.Header
	if err := frame.Decode(payload); err != nil {
		return nil, err
	}
	if !frame.HasFCS || frame.FrameContentSize != size {
		return nil, fmt.Errorf("frame holds %d bytes, the record says %d", frame.FrameContentSize, size)
	}
	out, err := dec.DecodeAll(payload, make([]byte, 0, size))
	if err != nil {
		return nil, err
	}
	if uint64(len(out)) != size {
		return nil, fmt.Errorf("frame holds %d bytes, the record says %d", len(out), size)
	}
	return out, nil
}
