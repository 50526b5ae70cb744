package supervisor

import (
	"bytes"
	"unicode/utf8"
)

// StreamSummary is the bounded form of one stream: its beginning and its end.
type StreamSummary struct {
	Head []byte
	Tail []byte // empty if Head is all
	// Total bytes that the stream had; Omitted of them are in neither part.
	Total   uint64
	Omitted uint64
	// Lines counts line ends in what the log still has of the stream.
	Lines uint64
}

// Summary gives at most limit bytes of each stream, a quarter from the head and
// the rest from the tail, where the outcome stands. Text is cut between
// characters.
func Summary(dir string, limit int) (stdout, stderr StreamSummary, err error) {
	collectors := map[Stream]*collector{Stdout: newCollector(limit), Stderr: newCollector(limit)}
	r := OpenLog(dir)
	for cursor := uint64(0); ; {
		page, err := r.ReadAt(cursor, 1<<20)
		if err != nil {
			return stdout, stderr, err
		}
		cursor = page.Next
		for _, rec := range page.Records {
			collectors[rec.Stream].add(rec.Data)
		}
		if page.Dropped > 0 {
			collectors[Stdout].gap()
			collectors[Stderr].gap()
		}
		if len(page.Records) == 0 && page.Dropped == 0 {
			break
		}
	}
	totals := LogStats{StdoutBytes: collectors[Stdout].seen, StderrBytes: collectors[Stderr].seen}
	if r.exit != nil {
		totals = r.exit.Log
	}
	return collectors[Stdout].summary(totals.StdoutBytes), collectors[Stderr].summary(totals.StderrBytes), nil
}

// collector keeps the first and the last bytes of a stream.
type collector struct {
	headMax, tailMax int
	head, tail       []byte
	headClosed       bool
	seen, lines      uint64
}

func newCollector(limit int) *collector {
	return &collector{headMax: limit / 4, tailMax: limit - limit/4}
}

func (c *collector) add(b []byte) {
	c.seen += uint64(len(b))
	c.lines += uint64(bytes.Count(b, []byte{'\n'}))
	if !c.headClosed {
		n := min(len(b), c.headMax-len(c.head))
		c.head = append(c.head, b[:n]...)
		c.headClosed = len(c.head) == c.headMax
		b = b[n:]
	}
	c.tail = append(c.tail, b...)
	if len(c.tail) > 2*c.tailMax+maxFrame {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-c.tailMax:]...)
	}
}

// gap ends the head: what follows does not adjoin it. Where exactly in a page
// the gap lies does not matter, since a page's records before it are at the
// retained head's end.
func (c *collector) gap() { c.headClosed = true }

func (c *collector) summary(total uint64) StreamSummary {
	total = max(total, c.seen)
	tail := c.tail
	if len(tail) > c.tailMax {
		tail = tail[len(tail)-c.tailMax:]
	}
	if uint64(len(c.head)+len(tail)) == total {
		return StreamSummary{Head: append(c.head, tail...), Total: total, Lines: c.lines}
	}
	s := StreamSummary{Head: trimEnd(c.head), Tail: trimStart(tail), Total: total, Lines: c.lines}
	s.Omitted = total - uint64(len(s.Head)) - uint64(len(s.Tail))
	return s
}

// trimEnd drops an incomplete character at the end of what is text otherwise.
func trimEnd(b []byte) []byte {
	for cut := range min(utf8.UTFMax, len(b)+1) {
		if utf8.Valid(b[:len(b)-cut]) {
			return b[:len(b)-cut]
		}
	}
	return b
}

// trimStart drops the rest of a character at the start of what is text
// otherwise.
func trimStart(b []byte) []byte {
	for cut := range min(utf8.UTFMax, len(b)+1) {
		if cut > 0 && utf8.RuneStart(b[cut-1]) {
			break
		}
		if utf8.Valid(b[cut:]) {
			return bytes.Clone(b[cut:])
		}
	}
	return b
}

// scanStats counts what the log holds, for an execution whose shim can't tell.
func scanStats(dir string) (LogStats, error) {
	var s LogStats
	r := OpenLog(dir)
	for {
		page, err := r.ReadAt(s.TotalBytes, 1<<20)
		if err != nil {
			return s, err
		}
		for _, rec := range page.Records {
			if rec.Stream == Stdout {
				s.StdoutBytes += uint64(len(rec.Data))
			} else {
				s.StderrBytes += uint64(len(rec.Data))
			}
		}
		s.DroppedBytes += page.Dropped
		s.TotalBytes = page.Next
		if len(page.Records) == 0 && page.Dropped == 0 {
			return s, nil
		}
	}
}
