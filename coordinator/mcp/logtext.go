package mcp

import (
	"cmp"
	"slices"
	"unicode/utf8"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// logText turns records into text. A character that is split between records
// is put together again, also when records of the other stream lie between; one
// that a page's end splits is left for the next page (F11).
type logText struct {
	stream string // only this one; "" for both
	room   int    // what the text may still take in JSON
	start  uint64
	logMark
	full bool
	text []byte
	// begun are characters whose end has not come, at most one a stream; split
	// are those whose end came in a later record.
	begun, split []begun
}

// logMark is what there is to know at one place of the output.
type logMark struct {
	at      uint64 // the cursor
	dropped uint64 // bytes before it that are no longer kept
	binary  bool   // some byte before it was no text
}

// begun is the start of a character, and the state before it.
type begun struct {
	stream string
	bytes  []byte
	text   int // length of the text before it
	before logMark
	end    uint64 // cursor after its last byte, once that has come
}

func newLogText(stream string, cursor uint64, room int) *logText {
	return &logText{stream: stream, room: room, start: cursor, logMark: logMark{at: cursor}}
}

// addPage takes the records of an unfiltered page until the text is full.
func (t *logText) addPage(p *skerryv1.ReadExecutionLogsResponse) {
	for _, r := range p.Records {
		t.gap(r.Cursor)
		if t.stream == "" || r.Stream == t.stream {
			t.add(r.Stream, r.Data)
		} else {
			t.at += uint64(len(r.Data))
		}
		if t.full {
			return
		}
	}
	t.gap(p.NextCursor)
}

// gap notes bytes up to cursor that are no longer kept. A character does not go
// on behind one.
func (t *logText) gap(cursor uint64) {
	if cursor <= t.at {
		return
	}
	t.abandon()
	t.dropped += cursor - t.at
	t.at = cursor
}

// add takes bytes of a stream; t.at is their cursor.
func (t *logText) add(stream string, data []byte) {
	for len(data) > 0 && !t.full {
		if i := slices.IndexFunc(t.begun, func(b begun) bool { return b.stream == stream }); i >= 0 {
			data = data[t.goOn(i, data[0]):]
			continue
		}
		if !utf8.FullRune(data) {
			t.begun = append(t.begun, begun{stream: stream, bytes: slices.Clone(data), text: len(t.text), before: t.logMark})
			t.at += uint64(len(data))
			return
		}
		c, size := utf8.DecodeRune(data)
		if t.write(c, c == utf8.RuneError && size == 1) {
			t.at += uint64(size)
			data = data[size:]
		}
	}
}

// goOn adds a byte to a begun character and says how many bytes it took: none
// when the byte is not of this character.
func (t *logText) goOn(i int, next byte) int {
	b := t.begun[i]
	whole := append(slices.Clip(b.bytes), next)
	if !utf8.FullRune(whole) {
		t.begun[i].bytes = whole
		t.at++
		return 1
	}
	c, size := utf8.DecodeRune(whole)
	taken := 1
	if size != len(whole) { // it broke off
		c, taken = utf8.RuneError, 0
	}
	if !t.write(c, taken == 0) {
		return 0 // full: the next page takes it up from its start
	}
	t.begun = slices.Delete(t.begun, i, i+1)
	t.at += uint64(taken)
	b.end = t.at
	t.split = append(t.split, b)
	return taken
}

// write adds a character; false and full when there is no room.
func (t *logText) write(c rune, damaged bool) bool {
	cost := utf8.RuneLen(c)
	if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
		cost = len(`\u0000`)
	}
	if cost > t.room {
		t.full = true
		return false
	}
	t.room -= cost
	t.text = utf8.AppendRune(t.text, c)
	t.binary = t.binary || damaged
	return true
}

// abandon shows begun characters as what they are without their end.
func (t *logText) abandon() {
	for range t.begun {
		t.text = utf8.AppendRune(t.text, utf8.RuneError)
		t.binary = true
	}
	t.begun = nil
}

// finish ends the page. Unless the output ends there, the page is cut before a
// begun character, so that the next one has it whole. When that would leave
// nothing of the page though more output lies behind, the character is given
// up: the next page would be no better.
func (t *logText) finish(end bool) {
	if len(t.begun) == 0 {
		return
	}
	cut := t.cut()
	alone := len(t.text) == 0 && t.at-t.start < logFetch
	if end || (cut.before.at <= t.start && !alone) {
		t.abandon()
		return
	}
	t.text, t.logMark = t.text[:cut.text], cut.before
}

// cut is the last place that no character of either stream spans.
func (t *logText) cut() begun {
	cut := slices.MinFunc(t.begun, func(a, b begun) int { return cmp.Compare(a.before.at, b.before.at) })
	for i := len(t.split) - 1; i >= 0; i-- {
		if c := t.split[i]; c.before.at < cut.before.at && cut.before.at < c.end {
			cut, i = c, len(t.split)
		}
	}
	return cut
}

// lastBytes gives the records from the last n bytes of a stream on, and the
// cursor where they start.
func lastBytes(records []*skerryv1.LogRecord, stream string, n int, start uint64) ([]*skerryv1.LogRecord, uint64) {
	for i := len(records) - 1; i >= 0; i-- {
		r := records[i]
		if r.Stream != stream {
			continue
		}
		if cut := len(r.Data) - n; cut >= 0 {
			skip(r, cut)
			return records[i:], r.Cursor
		}
		n -= len(r.Data)
	}
	return records, start
}

// startAtCharacter leaves out the end of a character at the start of a tail.
func startAtCharacter(records []*skerryv1.LogRecord, start uint64) uint64 {
	if start == 0 || len(records) == 0 || records[0].Cursor != start {
		return start
	}
	n := 0
	for n < min(len(records[0].Data), utf8.UTFMax-1) && !utf8.RuneStart(records[0].Data[n]) {
		n++
	}
	skip(records[0], n)
	return records[0].Cursor
}

func skip(r *skerryv1.LogRecord, n int) {
	r.Data = r.Data[n:]
	r.Cursor += uint64(n)
}
