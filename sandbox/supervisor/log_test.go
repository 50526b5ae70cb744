package supervisor

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// logFixture writes a log without any process.
func logFixture(t testing.TB, limits LogLimits) (string, *logWriter) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, logDir), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, newLogWriter(filepath.Join(dir, logDir), limits)
}

func (w *logWriter) add(stream Stream, data []byte) {
	n := copy(w.payload(), data)
	w.commit(stream, n, time.Unix(1, 2))
}

// end closes the log and writes the verdict.
func (w *logWriter) end(t testing.TB, dir string) {
	t.Helper()
	_ = w.close()
	to, err := newPendingFile(dir, exitFile)
	if err != nil {
		t.Fatal(err)
	}
	defer to.close()
	zero := 0
	if err := (Exit{Kind: KindExited, Code: &zero, Log: w.snapshot()}).publish(to); err != nil {
		t.Fatal(err)
	}
}

// pattern is the byte at each cursor of a test's log.
func pattern(cursor uint64) byte { return byte(cursor*7 + cursor>>8) }

func patternBytes(from uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = pattern(from + uint64(i))
	}
	return b
}

// checkPage verifies each byte of a page against the pattern and that records,
// gaps and Next fit together.
func checkPage(t testing.TB, cursor uint64, page LogPage) {
	t.Helper()
	got := uint64(0)
	for _, rec := range page.Records {
		if rec.Cursor < cursor {
			t.Fatalf("record at %d after %d was delivered", rec.Cursor, cursor)
		}
		if !bytes.Equal(rec.Data, patternBytes(rec.Cursor, len(rec.Data))) {
			t.Fatalf("record at %d has the wrong bytes", rec.Cursor)
		}
		cursor = rec.Cursor + uint64(len(rec.Data))
		got += uint64(len(rec.Data))
	}
	if cursor > page.Next {
		t.Fatalf("page ends at %d, records at %d", page.Next, cursor)
	}
}

func TestLogPagesAnySize(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 1 << 20, TailBytes: 1 << 20, SegmentBytes: 4 << 10})
	total := uint64(0)
	for i := range 300 {
		n := 1 + i*13%700
		w.add(Stdout+Stream(i%2), patternBytes(total, n))
		total += uint64(n)
	}
	for _, size := range []int{1, 7, 64, 1000, 1 << 20} {
		r := OpenLog(dir)
		cursor := uint64(0)
		for cursor < min(total, uint64(size)*500) {
			page, err := r.ReadAt(cursor, size)
			if err != nil || page.Dropped != 0 || page.EOF || page.Next == cursor || page.Next > cursor+uint64(size) {
				t.Fatalf("size %d at %d: %+v, %v", size, cursor, page, err)
			}
			checkPage(t, cursor, page)
			cursor = page.Next
		}
	}
	// From anywhere, with a fresh reader, as well.
	for range 200 {
		at := rand.Uint64N(total)
		page, err := OpenLog(dir).ReadAt(at, 100)
		if err != nil || len(page.Records) == 0 || page.Records[0].Cursor != at {
			t.Fatalf("at %d: %+v, %v", at, page, err)
		}
		checkPage(t, at, page)
	}
	w.end(t, dir)
	page, err := OpenLog(dir).ReadAt(total, 10)
	if err != nil || !page.EOF || len(page.Records) != 0 || page.Next != total {
		t.Errorf("end: %+v, %v", page, err)
	}
}

// F12: head and tail are kept, and what is dropped is counted.
func TestF12RetentionCounts(t *testing.T) {
	limits := LogLimits{HeadBytes: 10 << 10, TailBytes: 20 << 10, SegmentBytes: 4 << 10}
	dir, w := logFixture(t, limits)
	total := uint64(0)
	for total < 300<<10 {
		w.add(Stdout, patternBytes(total, 500))
		total += 500
	}
	w.end(t, dir)
	stats := w.snapshot()
	if onDisk := diskBytes(t, dir); onDisk > limits.HeadBytes+limits.TailBytes+2*limits.SegmentBytes {
		t.Errorf("%d bytes on disk", onDisk)
	}
	kept, dropped := readAll(t, dir)
	if kept+dropped != total || dropped != stats.DroppedBytes || stats.TotalBytes != total {
		t.Errorf("kept %d, dropped %d of %d; stats %+v", kept, dropped, total, stats)
	}
	if kept < uint64(limits.HeadBytes+limits.TailBytes)*9/10 {
		t.Errorf("only %d bytes kept", kept)
	}
	// A cursor within the gap is told of the rest of the gap alone.
	page, err := OpenLog(dir).ReadAt(100<<10, 10)
	if err != nil || page.Dropped == 0 || page.Records[0].Cursor != 100<<10+page.Dropped {
		t.Errorf("in the gap: %+v, %v", page, err)
	}
	out, _, err := Summary(dir, 4000)
	if err != nil || !bytes.Equal(out.Head, patternBytes(0, 1000)) || out.Total != total ||
		!bytes.Equal(out.Tail, patternBytes(total-3000, 3000)) || out.Omitted != total-4000 {
		t.Errorf("summary: %d, %d, total %d, omitted %d, %v", len(out.Head), len(out.Tail), out.Total, out.Omitted, err)
	}
}

func diskBytes(t *testing.T, dir string) (n int64) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, logDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func readAll(t *testing.T, dir string) (kept, dropped uint64) {
	t.Helper()
	r := OpenLog(dir)
	for cursor := uint64(0); ; {
		page, err := r.ReadAt(cursor, 0)
		if err != nil {
			t.Fatal(err)
		}
		checkPage(t, cursor, page)
		for _, rec := range page.Records {
			kept += uint64(len(rec.Data))
		}
		dropped += page.Dropped
		if cursor = page.Next; page.EOF {
			return kept, dropped
		}
	}
}

// F14: a follower sees each byte once, while segments rotate and vanish.
func TestF14FollowMissesAndRepeatsNothing(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 8 << 10, TailBytes: 16 << 10, SegmentBytes: 2 << 10})
	const total = 2 << 20
	go func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for at := 0; at < total; {
			n := min(1+rng.IntN(900), total-at)
			w.add(Stdout+Stream(at%2), patternBytes(uint64(at), n))
			at += n
		}
		w.end(t, dir)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var cursor, seen, dropped uint64
	eof := false
	for page, err := range OpenLog(dir).Follow(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		checkPage(t, cursor, page)
		for _, rec := range page.Records {
			seen += uint64(len(rec.Data))
		}
		dropped += page.Dropped
		cursor, eof = page.Next, page.EOF
	}
	if !eof || cursor != total || seen+dropped != total {
		t.Errorf("eof %v, cursor %d, seen %d, dropped %d of %d", eof, cursor, seen, dropped, total)
	}
}

// A reconnecting follower goes on where it was, and its context ends it.
func TestF14FollowResumes(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 1 << 20, TailBytes: 1 << 20, SegmentBytes: 1 << 20})
	cursor := uint64(0)
	for i := range 20 {
		w.add(Stdout, patternBytes(cursor, 1000+i))
		ctx, cancel := context.WithCancel(t.Context())
		for page, err := range OpenLog(dir).Follow(ctx, cursor) {
			if err != nil {
				if ctx.Err() == nil {
					t.Fatal(err)
				}
				continue
			}
			checkPage(t, cursor, page)
			if page.Next != cursor+uint64(1000+i) {
				t.Fatalf("page to %d, want %d", page.Next, cursor+uint64(1000+i))
			}
			cursor = page.Next
			cancel()
		}
		cancel()
	}
}

func TestTornFrameIsNotThere(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 1 << 20, TailBytes: 1 << 20, SegmentBytes: 1 << 20})
	w.add(Stdout, patternBytes(0, 100))
	w.add(Stderr, patternBytes(100, 100))
	path := segmentPath(filepath.Join(dir, logDir), 0)
	for cut := int64(1); cut <= 115; cut += 19 {
		if err := os.Truncate(path, 2*(100+frameHeaderSize)-cut); err != nil {
			t.Fatal(err)
		}
		page, err := OpenLog(dir).ReadAt(0, 1000)
		if err != nil || page.Next != 100 || len(page.Records) != 1 {
			t.Errorf("cut %d: %+v, %v", cut, page, err)
		}
	}
	stats, err := scanStats(dir)
	if err != nil || stats.TotalBytes != 100 || stats.StdoutBytes != 100 {
		t.Errorf("stats %+v, %v", stats, err)
	}
}

// A full disk loses output, says so, and the rest of the log stays readable.
func TestLogSurvivesAFullDisk(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 1 << 20, TailBytes: 1 << 20, SegmentBytes: 1 << 20})
	w.add(Stdout, patternBytes(0, 100))
	healthy := w.cur
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = full
	w.add(Stderr, patternBytes(100, 50))
	healthy.Close()
	w.add(Stdout, patternBytes(150, 30))
	w.end(t, dir)
	stats := w.snapshot()
	if stats.TotalBytes != 180 || stats.DroppedBytes != 50 || stats.StderrBytes != 50 {
		t.Errorf("stats %+v", stats)
	}
	if err := w.close(); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("failure %v", err)
	}
	kept, dropped := readAll(t, dir)
	if kept != 130 || dropped != 50 {
		t.Errorf("kept %d, dropped %d", kept, dropped)
	}
}

// F13: endless output and an endless line cost neither memory nor disk.
func TestF13Floods(t *testing.T) {
	for name, argv := range map[string][]string{
		"yes":                   {"timeout", "1", "yes"},
		"100 MB without a line": {"head", "-c", "100000000", "/dev/zero"},
		"many tiny writes":      {"timeout", "1", "sh", "-c", "while :; do echo -n a; echo -n b >&2; done"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, argv...)
			f.spec.Log = LogLimits{HeadBytes: 1 << 20, TailBytes: 2 << 20, SegmentBytes: 512 << 10}
			e := f.run(t)
			if e.Kind != KindExited || e.Log.TotalBytes == 0 {
				t.Fatalf("got %+v", e)
			}
			if n := diskBytes(t, f.dir); n > 5<<20 {
				t.Errorf("%d bytes on disk", n)
			}
			// The largest process is the command, init or bwrap; the shim's own
			// peak is looked at in TestIdleShimIsSmall.
			t.Logf("%d bytes, %d dropped", e.Log.TotalBytes, e.Log.DroppedBytes)
		})
	}
}

// F11: cuts in the summary fall between characters.
func TestF11SummaryCutsBetweenCharacters(t *testing.T) {
	dir, w := logFixture(t, LogLimits{HeadBytes: 1 << 20, TailBytes: 1 << 20, SegmentBytes: 1 << 20})
	text := strings.Repeat("日本", 1000)
	w.add(Stdout, []byte(text))
	for limit := 100; limit < 112; limit++ {
		out, _, err := Summary(dir, limit)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, string(out.Head)) || !strings.HasSuffix(text, string(out.Tail)) ||
			len(out.Head)%3 != 0 || len(out.Tail)%3 != 0 {
			t.Errorf("limit %d: head %q, tail %q", limit, out.Head, out.Tail)
		}
		if uint64(len(out.Head)+len(out.Tail))+out.Omitted != uint64(len(text)) || out.Total != uint64(len(text)) {
			t.Errorf("limit %d: omitted %d of %d", limit, out.Omitted, out.Total)
		}
	}
}

func FuzzLogReader(f *testing.F) {
	f.Add([]byte{}, uint64(0))
	f.Add([]byte{1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'x'}, uint64(0))
	f.Fuzz(func(t *testing.T, segment []byte, cursor uint64) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, logDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(segmentPath(filepath.Join(dir, logDir), 0), segment, 0o600); err != nil {
			t.Fatal(err)
		}
		page, err := OpenLog(dir).ReadAt(cursor, 100)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		for _, r := range page.Records {
			n += uint64(len(r.Data))
		}
		if n > 100 || page.Next != cursor+n+page.Dropped {
			t.Fatalf("%+v", page)
		}
	})
}
