package supervisor

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// logWriter appends frames to segments and keeps only a head and a tail of
// them. A failing disk never blocks the command: what can't be written is
// counted as dropped, and the gap is visible to readers.
type logWriter struct {
	dir    string
	limits LogLimits
	buf    []byte // header and payload of one frame, for one write(2)

	mu       sync.Mutex
	stats    LogStats
	cur      *os.File
	curStart uint64
	curSize  int64     // bytes on disk of the current segment
	done     []segment // finished segments that still exist, oldest first
	tailSize int64     // bytes on disk of the finished ones beyond the head
	headFull bool
	headSize int64
	failure  error // the first write error
}

type segment struct {
	start   uint64
	payload uint64
	size    int64
}

func newLogWriter(dir string, limits LogLimits) *logWriter {
	return &logWriter{dir: dir, limits: limits, buf: make([]byte, frameHeaderSize+maxFrame)}
}

// payload is where the next payload, at most maxFrame bytes, is to be read into.
func (w *logWriter) payload() []byte { return w.buf[frameHeaderSize:] }

// commit appends the first n bytes of payload as one frame.
func (w *logWriter) commit(stream Stream, n int, at time.Time) {
	frameHeader{length: uint32(n), stream: stream, nanos: at.UnixNano()}.put(w.buf)
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.append(w.buf[:frameHeaderSize+n])
	w.count(stream, uint64(n))
	if err != nil {
		w.stats.DroppedBytes += uint64(n)
		if w.failure == nil {
			w.failure = err
		}
	}
}

func (w *logWriter) count(stream Stream, n uint64) {
	w.stats.TotalBytes += n
	if stream == Stdout {
		w.stats.StdoutBytes += n
	} else {
		w.stats.StderrBytes += n
	}
}

func (w *logWriter) append(frame []byte) error {
	if w.cur != nil && w.curSize+int64(len(frame)) > w.limits.SegmentBytes {
		w.rotate()
	}
	if w.cur == nil {
		if err := w.openSegment(); err != nil {
			return err
		}
	}
	if _, err := w.cur.Write(frame); err != nil {
		w.abandon()
		return fmt.Errorf("write log: %w", err)
	}
	w.curSize += int64(len(frame))
	return nil
}

func (w *logWriter) openSegment() error {
	start := w.stats.TotalBytes
	f, err := os.OpenFile(segmentPath(w.dir, start), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log segment: %w", err)
	}
	w.cur, w.curStart, w.curSize = f, start, 0
	return nil
}

// abandon ends the current segment at its last whole frame, so that what comes
// after the lost frame starts a segment of its own.
func (w *logWriter) abandon() {
	if w.curSize == 0 {
		os.Remove(segmentPath(w.dir, w.curStart))
		w.cur.Close()
		w.cur = nil
		return
	}
	// A torn frame that can't be cut off is harmless: readers stop before it.
	_ = w.cur.Truncate(w.curSize)
	w.rotate()
}

func (w *logWriter) rotate() {
	if err := w.cur.Close(); err != nil && w.failure == nil {
		w.failure = fmt.Errorf("close log segment: %w", err)
	}
	w.cur = nil
	if !w.headFull {
		w.headSize += w.curSize
		w.headFull = w.headSize >= w.limits.HeadBytes
		return
	}
	w.done = append(w.done, segment{w.curStart, w.stats.TotalBytes - w.curStart, w.curSize})
	w.tailSize += w.curSize
	w.dropMiddle()
}

// dropMiddle removes the oldest segments beyond the head while the younger ones
// alone satisfy the tail.
func (w *logWriter) dropMiddle() {
	for len(w.done) > 0 && w.tailSize-w.done[0].size >= w.limits.TailBytes {
		old := w.done[0]
		if err := os.Remove(segmentPath(w.dir, old.start)); err != nil {
			if w.failure == nil {
				w.failure = fmt.Errorf("drop log segment: %w", err)
			}
			return
		}
		w.done = w.done[1:]
		w.tailSize -= old.size
		w.stats.DroppedBytes += old.payload
	}
}

func (w *logWriter) snapshot() LogStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// close flushes nothing (there is no buffer) but reports the first failure.
func (w *logWriter) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cur != nil {
		if err := w.cur.Close(); err != nil && w.failure == nil {
			w.failure = err
		}
		w.cur = nil
	}
	return w.failure
}
