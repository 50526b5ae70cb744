package diskquota

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a tree takes is known although no size of a file shows it, and forgotten
// when it is gone.
func TestTallyKnowsWhatSizesHide(t *testing.T) {
	dir := t.TempDir()
	top, limits := open(t, dir), Limits{Bytes: 1 << 20, Entries: 50}
	var tally Tally
	over := func() string {
		t.Helper()
		c, err := tally.Count(top, limits)
		must(t, err)
		o, _ := limits.Passed(c)
		return o.Limit
	}
	if got := over(); got != "" {
		t.Fatalf("empty, and over %s", got)
	}
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 4<<20); err != nil {
		t.Skip("no fallocate here: ", err)
	}
	if got := over(); got != "workspace_bytes" {
		t.Errorf("4 MiB reserved, of 1 MiB: over %q", got)
	}
	must(t, os.Remove(dir+"/f"))
	must(t, f.Close())
	if got := over(); got != "" {
		t.Errorf("all is gone, and still over %s", got)
	}
	for i := range 60 {
		must(t, unix.Mkfifo(fmt.Sprintf("%s/%d", dir, i), 0o600))
	}
	// What others remove meanwhile may hide the growth, but not for long.
	tally.seen, tally.grown = usage{1 << 62, 1 << 62}, usage{}
	tally.ended = time.Now().Add(-leastPeriod - laterAfter*tally.cost)
	if got := over(); got != "workspace_entries" {
		t.Errorf("60 pipes of 50 entries: over %q", got)
	}
}

// On some file systems a directory keeps the space of names that are gone.
func TestWalkCountsSpaceOfDirectories(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/d", 0o700))
	for i := range 3000 {
		name := fmt.Sprintf("%s/d/%s%d", dir, strings.Repeat("x", 200), i)
		must(t, unix.Mkfifo(name, 0o600))
		defer os.Remove(name)
	}
	want := directoryBytes(t, dir+"/d")
	if c := count(t, dir, Limits{}); c.Bytes != want {
		t.Errorf("%d bytes, want %d", c.Bytes, want)
	}
	t.Logf("%d bytes beyond the first block", want)
}

// directoryBytes are those that count: beyond the first block.
func directoryBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	return max(st.Blocks*512-max(int64(st.Blksize), 512), 0) //nolint:unconvert // 32 bits on arm64
}
