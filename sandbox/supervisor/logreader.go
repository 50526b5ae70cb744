package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// LogRecord is a piece of one stream, as raw bytes.
type LogRecord struct {
	// Cursor is the offset of the first byte in the log: the concatenation of
	// both streams' bytes in the order of their arrival.
	Cursor uint64
	Stream Stream
	Time   time.Time
	Data   []byte
}

// LogPage is a run of records.
type LogPage struct {
	Records []LogRecord
	// Next is the cursor to go on from.
	Next uint64
	// Dropped counts bytes between the asked cursor and Next that are not kept.
	Dropped uint64
	// EOF says that the execution has ended and nothing follows Next.
	EOF bool
}

// LogReader reads the log of one execution, also while it is written. It holds
// no descriptor between calls. Not for concurrent use.
type LogReader struct {
	dir  string // of the execution
	exit *Exit  // once known
	at   logPosition
}

// logPosition is where a frame starts: its cursor and its place on disk.
type logPosition struct {
	segment uint64 // start cursor of the segment
	cursor  uint64
	offset  int64
}

// OpenLog gives a reader for the execution's directory. Nothing is opened yet.
func OpenLog(dir string) *LogReader { return &LogReader{dir: dir} }

const defaultPageBytes = 256 << 10

// ReadAt gives up to maxBytes (0 means 256 KiB) of payload from cursor on. A
// page without records whose EOF is false means that the log ends there now.
func (r *LogReader) ReadAt(cursor uint64, maxBytes int) (LogPage, error) {
	if maxBytes <= 0 {
		maxBytes = defaultPageBytes
	}
	// In this order: when the verdict is there, all of the log is.
	ended, err := r.hasEnded()
	if err != nil {
		return LogPage{}, err
	}
	p := &pageBuilder{page: LogPage{Next: cursor}, room: maxBytes}
	for p.room > 0 {
		more, err := r.fillFromSegment(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // dropped between listing and opening: list again
		}
		if err != nil {
			return LogPage{}, fmt.Errorf("read log: %w", err)
		}
		if !more {
			r.markEnd(p, ended)
			break
		}
	}
	return p.page, nil
}

func (r *LogReader) hasEnded() (bool, error) {
	if r.exit != nil {
		return true, nil
	}
	exit, found, err := ReadExit(r.dir)
	if err != nil {
		return false, err
	}
	if found {
		r.exit = &exit
		return true, nil
	}
	return exists(r.dir, voidFile)
}

func (r *LogReader) markEnd(p *pageBuilder, ended bool) {
	if !ended {
		return
	}
	if r.exit != nil {
		p.skipTo(r.exit.Log.TotalBytes) // what a full disk lost at the end
	}
	p.page.EOF = true
}

// fillFromSegment adds what the segment at the page's end holds. It returns
// false at the present end of the log.
func (r *LogReader) fillFromSegment(p *pageBuilder) (bool, error) {
	dir := filepath.Join(r.dir, logDir)
	starts, err := listSegments(dir)
	if err != nil || len(starts) == 0 {
		return false, err
	}
	i := segmentFor(starts, p.page.Next)
	if i < 0 {
		p.skipTo(starts[0])
		i = 0
	}
	full, err := r.readSegment(dir, starts[i], p)
	if err != nil || full {
		return true, err
	}
	if i+1 == len(starts) {
		return false, nil
	}
	// The next segment was there before this one was read, so this one is
	// complete, and what lies between them is lost.
	p.skipTo(starts[i+1])
	return true, nil
}

// segmentFor gives the index of the last segment that starts at or before
// cursor, or -1.
func segmentFor(starts []uint64, cursor uint64) int {
	for i := len(starts) - 1; i >= 0; i-- {
		if starts[i] <= cursor {
			return i
		}
	}
	return -1
}

// readSegment reports whether the page is full before the segment's end.
func (r *LogReader) readSegment(dir string, start uint64, p *pageBuilder) (bool, error) {
	f, err := os.Open(segmentPath(dir, start))
	if err != nil {
		return false, err
	}
	defer f.Close()
	if r.at.segment != start || r.at.cursor > p.page.Next {
		r.at = logPosition{segment: start, cursor: start}
	}
	frames := bufio.NewReaderSize(io.NewSectionReader(f, r.at.offset, 1<<62), maxFrame)
	for p.room > 0 {
		h, err := nextFrame(frames)
		if err != nil {
			// The end, or a frame that is torn or not yet complete: not there.
			return false, nil
		}
		end := r.at.cursor + uint64(h.length)
		if end > p.page.Next {
			if ok, err := p.addFrame(frames, h, r.at.cursor); err != nil || !ok {
				return false, err
			}
			if end > p.page.Next {
				break // the page ends within this frame
			}
		} else if _, err := frames.Discard(int(h.length)); err != nil {
			return false, nil
		}
		r.at.cursor = end
		r.at.offset += frameHeaderSize + int64(h.length)
	}
	return true, nil
}

func nextFrame(r *bufio.Reader) (frameHeader, error) {
	var b [frameHeaderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return frameHeader{}, err
	}
	return parseFrameHeader(b[:])
}

// pageBuilder fills a page up to room bytes.
type pageBuilder struct {
	page LogPage
	room int
}

// skipTo counts everything up to cursor as dropped.
func (p *pageBuilder) skipTo(cursor uint64) {
	if cursor > p.page.Next {
		p.page.Dropped += cursor - p.page.Next
		p.page.Next = cursor
	}
}

// addFrame adds what lies beyond the page's end and fits into it; false if the
// payload is torn.
func (p *pageBuilder) addFrame(r io.Reader, h frameHeader, cursor uint64) (bool, error) {
	data := make([]byte, h.length)
	if _, err := io.ReadFull(r, data); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return false, nil
		}
		return false, err
	}
	if p.page.Next > cursor {
		data = data[p.page.Next-cursor:]
	}
	data = data[:min(len(data), p.room)]
	p.page.Records = append(p.page.Records, LogRecord{p.page.Next, h.stream, h.time(), data})
	p.page.Next += uint64(len(data))
	p.room -= len(data)
	return true, nil
}

// Follow yields pages from cursor on as they come, each byte once, and ends
// when the execution has ended and all of its output was delivered. It yields
// an error, last, if ctx ends or the log can't be read.
func (r *LogReader) Follow(ctx context.Context, cursor uint64) iter.Seq2[LogPage, error] {
	return func(yield func(LogPage, error) bool) {
		if err := r.follow(ctx, cursor, yield); err != nil {
			yield(LogPage{}, err)
		}
	}
}

// follow returns nil when the consumer or the log is done.
func (r *LogReader) follow(ctx context.Context, cursor uint64, yield func(LogPage, error) bool) error {
	w, err := newWatch(
		watchOn{filepath.Join(r.dir, logDir), unix.IN_MODIFY | unix.IN_CREATE},
		watchOn{r.dir, unix.IN_MOVED_TO})
	if err != nil {
		return err
	}
	defer w.close()
	for {
		page, err := r.ReadAt(cursor, 0)
		if err != nil {
			return err
		}
		cursor = page.Next
		news := len(page.Records) > 0 || page.Dropped > 0
		if (news || page.EOF) && !yield(page, nil) || page.EOF {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !news {
			if err := w.wait(ctx); err != nil {
				return err
			}
		}
	}
}
