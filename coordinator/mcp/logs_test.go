package mcp

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// fakeLog is an execution's log. Bytes in [gap, gapEnd) are no longer kept.
type fakeLog struct {
	records     []*skerryv1.LogRecord
	gap, gapEnd uint64
	ended       bool
}

func (l *fakeLog) write(stream, data string) {
	l.records = append(l.records, &skerryv1.LogRecord{Cursor: l.size(), Stream: stream, Data: []byte(data)})
}

func (l *fakeLog) size() uint64 {
	if len(l.records) == 0 {
		return 0
	}
	last := l.records[len(l.records)-1]
	return last.Cursor + uint64(len(last.Data))
}

// read is what the runner does.
func (l *fakeLog) read(r *skerryv1.ReadExecutionLogsRequest) (*skerryv1.ReadExecutionLogsResponse, error) {
	at, room := r.Cursor, uint64(r.MaxBytes)
	if r.TailBytes != nil {
		at = l.size() - min(l.size(), uint64(*r.TailBytes))
	}
	out := &skerryv1.ReadExecutionLogsResponse{State: "running"}
	for _, rec := range l.records {
		for end := rec.Cursor + uint64(len(rec.Data)); at < end && room > 0; {
			if at >= l.gap && at < l.gapEnd {
				to := min(l.gapEnd, end)
				out.DroppedBytes += to - at
				at = to
				continue
			}
			to := min(end, at+room)
			if at < l.gap {
				to = min(to, l.gap)
			}
			out.Records = append(out.Records, &skerryv1.LogRecord{Cursor: at, Stream: rec.Stream, Data: rec.Data[at-rec.Cursor : to-rec.Cursor : to-rec.Cursor]})
			room -= to - at
			at = to
		}
	}
	out.NextCursor = at
	if out.End = l.ended && at == l.size(); out.End {
		out.State = "completed"
	}
	return out, nil
}

func (l *fakeLog) session(t testing.TB) session {
	return newSession(t, &fake{t: t, logs: l.read})
}

func (s session) logs(args string) logPage {
	s.t.Helper()
	a := s.good("execution_logs", `{"execution_id":"ex_1"`+args+`}`)
	p := logPage{Cursor: uint64(a.json["cursor"].(float64)), NextCursor: uint64(a.json["nextCursor"].(float64)), Binary: a.json["binary"].(bool),
		DroppedBytes: uint64(a.json["droppedBytes"].(float64)), End: a.json["end"].(bool), Text: a.json["text"].(string), State: a.json["state"].(string)}
	if shown := strings.Join(a.text[1:], ""); shown != p.Text || !strings.Contains(a.text[0], fmt.Sprintf("next_cursor %d", p.NextCursor)) {
		s.t.Fatalf("text and JSON differ: %.200q", a.text)
	}
	return p
}

// F11: whatever the places where records and pages are cut, the text is whole.
func TestF11LogsAreWholeAcrossEdges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 6 {
		l := &fakeLog{ended: true}
		left := map[string]string{}
		want := map[string]string{}
		for _, stream := range []string{"stdout", "stderr"} {
			var b strings.Builder
			for b.Len() < 64<<10 {
				b.WriteString([]string{"a", "\n", "é", "€", "😀", "\"", "\x01"}[rng.IntN(7)])
			}
			left[stream], want[stream] = b.String(), b.String()
		}
		for len(left["stdout"])+len(left["stderr"]) > 0 {
			stream := []string{"stdout", "stderr"}[rng.IntN(2)]
			n := min(len(left[stream]), 1+rng.IntN(1<<(1+round)))
			if n > 0 {
				l.write(stream, left[stream][:n])
				left[stream] = left[stream][n:]
			}
		}
		s := l.session(t)
		for _, stream := range []string{"stdout", "stderr"} {
			if got := s.whole(t, `,"stream":"`+stream+`"`); got != want[stream] {
				t.Fatalf("round %d: %s has %d bytes, want %d", round, stream, len(got), len(want[stream]))
			}
		}
		both := s.whole(t, "")
		if len(both) != len(want["stdout"])+len(want["stderr"]) {
			t.Errorf("round %d: both have %d bytes", round, len(both))
		}
	}
}

// whole reads all pages.
func (s session) whole(t *testing.T, args string) string {
	t.Helper()
	var out strings.Builder
	for cursor := uint64(0); ; {
		p := s.logs(fmt.Sprintf(`%s,"cursor":%d`, args, cursor))
		if p.Binary || p.DroppedBytes > 0 || p.Cursor != cursor || len(p.Text) > logPageText || (p.NextCursor <= cursor && !p.End) {
			t.Fatalf("page at %d: next %d, %d bytes, binary %v", cursor, p.NextCursor, len(p.Text), p.Binary)
		}
		out.WriteString(p.Text)
		if p.End {
			return out.String()
		}
		cursor = p.NextCursor
	}
}

func TestAPageWaitsForTheEndOfACharacter(t *testing.T) {
	l := &fakeLog{}
	l.write("stdout", "ab\xe2\x82")
	s := l.session(t)
	if p := s.logs(""); p.Text != "ab" || p.NextCursor != 2 || p.End || p.Binary {
		t.Fatalf("got %+v", p)
	}
	if p := s.logs(`,"cursor":2`); p.Text != "" || p.NextCursor != 2 || p.Binary {
		t.Fatalf("got %+v", p)
	}
	l.write("stderr", "E")
	l.write("stdout", "\xacc")
	if p := s.logs(`,"cursor":2`); p.Text != "E€c" || p.NextCursor != 7 || p.Binary {
		t.Fatalf("got %+v", p)
	}
	if p := s.logs(`,"cursor":2,"stream":"stdout"`); p.Text != "€c" || p.NextCursor != 7 {
		t.Fatalf("got %+v", p)
	}
}

// Output that never completes a character must not hold back the other stream.
func TestABrokenCharacterDoesNotHoldUpThePage(t *testing.T) {
	l := &fakeLog{}
	l.write("stdout", "\xe2")
	l.write("stderr", "more")
	s := l.session(t)
	if p := s.logs(""); p.Text != "more\uFFFD" || !p.Binary || p.NextCursor != 5 {
		t.Fatalf("got %+v", p)
	}
	l.ended = true
	if p := s.logs(`,"stream":"stdout"`); p.Text != "\uFFFD" || !p.Binary || !p.End || p.NextCursor != 5 {
		t.Fatalf("got %+v", p)
	}
}

func TestBinaryOutputSaysSo(t *testing.T) {
	l := &fakeLog{ended: true}
	l.write("stdout", "a\xffb\xc3(\xf0\x9f")
	s := l.session(t)
	if p := s.logs(""); p.Text != "a\uFFFDb\uFFFD(\uFFFD" || !p.Binary || !p.End {
		t.Fatalf("got %+v", p)
	}
}

func TestBinaryPagesAreBounded(t *testing.T) {
	l := &fakeLog{ended: true}
	l.write("stdout", strings.Repeat("\xff\x00", 40<<10))
	s := l.session(t)
	seen := 0
	for cursor := uint64(0); ; {
		a := s.good("execution_logs", fmt.Sprintf(`{"execution_id":"ex_1","cursor":%d}`, cursor))
		if a.size > maxJSON {
			t.Fatalf("a page of %d bytes", a.size)
		}
		seen += len([]rune(a.json["text"].(string)))
		cursor = uint64(a.json["nextCursor"].(float64))
		if a.json["end"].(bool) {
			break
		}
	}
	if seen != 80<<10 {
		t.Errorf("%d characters of %d bytes", seen, 80<<10)
	}
}

func TestDroppedBytesAreCounted(t *testing.T) {
	l := &fakeLog{ended: true, gap: 3, gapEnd: 50_000}
	l.write("stdout", "a\xe2\x82\xac"+strings.Repeat("x", 60_000))
	s := l.session(t)
	p := s.logs("")
	if p.DroppedBytes != 49_997 || !strings.HasPrefix(p.Text, "a\uFFFDxxx") || len(p.Text) != 4+10_004 || !p.End || p.NextCursor != l.size() {
		t.Fatalf("got %d dropped, text of %d bytes: %.20q", p.DroppedBytes, len(p.Text), p.Text)
	}
	if p := s.logs(`,"stream":"stderr"`); p.DroppedBytes != 49_997 || p.Text != "" || !p.End {
		t.Fatalf("got %+v", p)
	}
	// A page that ends before the gap does not count it.
	l.gap, l.gapEnd = 50_000, 60_000
	first := s.logs("")
	second := s.logs(fmt.Sprintf(`,"cursor":%d`, first.NextCursor))
	if first.DroppedBytes != 0 || second.DroppedBytes != 10_000 || !second.End {
		t.Fatalf("dropped %d and %d", first.DroppedBytes, second.DroppedBytes)
	}
}

func TestTail(t *testing.T) {
	l := &fakeLog{ended: true}
	l.write("stderr", "early\n")
	l.write("stdout", strings.Repeat("€", 30_000))
	l.write("stderr", "late\n")
	s := l.session(t)
	for _, k := range []struct {
		args, want string
		cursor     uint64
	}{
		{`,"tail":9`, "€late\n", 6 + 90_000 - 3},
		{`,"tail":10`, "€late\n", 6 + 90_000 - 3}, // begins within a character
		{`,"tail":5,"stream":"stdout"`, "€", 6 + 90_000 - 3},
		{`,"tail":8,"stream":"stderr"`, "ly\nlate\n", 3},
		{`,"tail":100,"stream":"stderr"`, "early\nlate\n", 0},
	} {
		if p := s.logs(k.args); p.Text != k.want || p.Cursor != k.cursor || !p.End || p.Binary || p.DroppedBytes != 0 {
			t.Errorf("%s: got %+v", k.args, p)
		}
	}
}

// A quiet stream is found behind much of the other one.
func TestOneStreamIsFoundBehindTheOther(t *testing.T) {
	l := &fakeLog{}
	for range 3 {
		l.write("stdout", strings.Repeat("x", 1<<20))
	}
	l.write("stderr", "found")
	s := l.session(t)
	if p := s.logs(`,"stream":"stderr"`); p.Text != "found" || p.End || p.NextCursor != l.size() {
		t.Fatalf("got %.100q, next %d", p.Text, p.NextCursor)
	}
}
