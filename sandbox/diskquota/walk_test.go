package diskquota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func count(t testing.TB, dir string, limits Limits) Count {
	t.Helper()
	c, err := Walk(open(t, dir), limits)
	must(t, err)
	return c
}

func write(t testing.TB, path string, size int) {
	t.Helper()
	must(t, os.WriteFile(path, make([]byte, size), 0o600))
}

func TestWalkCounts(t *testing.T) {
	const whole = 256 << 10
	for name, tc := range map[string]struct {
		make  func(t *testing.T, dir string)
		bytes int64
		count int64
	}{
		"empty":    {func(*testing.T, string) {}, 0, 0},
		"one byte": {func(t *testing.T, dir string) { write(t, dir+"/a", 1) }, 1, 1},
		"directories": {func(t *testing.T, dir string) {
			must(t, os.MkdirAll(dir+"/a/b/c", 0o700))
			write(t, dir+"/a/b/f", whole)
		}, whole, 4},
		"sparse": {func(t *testing.T, dir string) { write(t, dir+"/a", 0); must(t, os.Truncate(dir+"/a", 1<<40)) }, 0, 1},
		"hard links": {func(t *testing.T, dir string) {
			write(t, dir+"/a", whole)
			must(t, os.Mkdir(dir+"/d", 0o700))
			for i := range 31 {
				must(t, os.Link(dir+"/a", fmt.Sprintf("%s/d/%d", dir, i)))
			}
		}, whole, 33},
		"space beyond the end": {func(t *testing.T, dir string) {
			f, err := os.Create(dir + "/a")
			must(t, err)
			defer f.Close()
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, whole); err != nil {
				t.Skip("no fallocate here: ", err)
			}
		}, whole, 1},
		"links and others": {func(t *testing.T, dir string) {
			must(t, os.Symlink("/", dir+"/root"))
			must(t, os.Symlink(".", dir+"/loop"))
			must(t, unix.Mkfifo(dir+"/pipe", 0o600))
		}, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.make(t, dir)
			if c := count(t, dir, Limits{}); c != (Count{Bytes: tc.bytes, Entries: tc.count}) {
				t.Errorf("got %+v, want %d bytes in %d entries", c, tc.bytes, tc.count)
			}
		})
	}
}

// A tree far deeper than descriptors and paths go is counted, with directories
// beside the way down.
func TestWalkDeep(t *testing.T) {
	const depth = 3000
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	must(t, err)
	for range depth {
		for _, name := range []string{"a", "deeper", "z"} {
			must(t, unix.Mkdirat(at, name, 0o700))
		}
		next, err := unix.Openat(at, "deeper", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	t.Cleanup(func() { must(t, removeDeep(dir)) })
	if c := count(t, dir, Limits{}); c != (Count{Entries: 3 * depth}) {
		t.Errorf("got %+v of %d entries", c, 3*depth)
	}
}

// removeDeep folds the tree before it is removed, as no path leads to its end.
func removeDeep(dir string) error {
	for i := 0; ; i++ {
		err := os.Rename(dir+"/deeper/deeper", fmt.Sprintf("%s/%d", dir, i))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.Rename(dir+"/deeper", fmt.Sprintf("%s/x%d", dir, i))
		}
		if err == nil {
			err = os.Rename(fmt.Sprintf("%s/%d", dir, i), dir+"/deeper")
		}
		if err != nil {
			return err
		}
	}
}

// A wide directory is read on correctly after each directory in it.
func TestWalkWide(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		if i%3 == 0 {
			must(t, os.Mkdir(fmt.Sprintf("%s/%s%d", dir, strings.Repeat("d", i%200), i), 0o700))
			continue
		}
		write(t, fmt.Sprintf("%s/%s%d", dir, strings.Repeat("f", i%200), i), 10)
	}
	if c := count(t, dir, Limits{}); c != (Count{Entries: 3000, Bytes: 20_000 + directoryBytes(t, dir)}) {
		t.Errorf("got %+v", c)
	}
	// Over a limit it ends early.
	if c := count(t, dir, Limits{Entries: 100}); c.Entries <= 100 || c.Entries >= 3000 || !c.Partial {
		t.Errorf("with a limit of 100 entries: %+v", c)
	}
}

// What was read of the levels above is gone on after each way down, however deep.
func TestWalkDeepAndWide(t *testing.T) {
	const depth, files = 11, 400
	dir := t.TempDir()
	want, at := int64(0), dir
	for i := range depth {
		for j := range files {
			write(t, fmt.Sprintf("%s/%0150d", at, j), 0)
			must(t, os.MkdirAll(fmt.Sprintf("%s/d%0*d%s", at, 100+i, j, strings.Repeat("/x", j%7)), 0o700))
			want += 2 + int64(j%7)
		}
		at += "/down"
		must(t, os.Mkdir(at, 0o700))
		want++
	}
	if c := count(t, dir, Limits{}); c.Entries != want || c.Partial {
		t.Errorf("got %+v, want %d entries", c, want)
	}
}

func TestWalkStaysOnItsMount(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/tree/mnt", 0o700))
	must(t, os.Mkdir(dir+"/other", 0o700))
	write(t, dir+"/other/file", 1<<20)
	if err := unix.Mount(dir+"/other", dir+"/tree/mnt", "", unix.MS_BIND, ""); err != nil {
		t.Skip("no bind mount without root: ", err)
	}
	defer func() { must(t, unix.Unmount(dir+"/tree/mnt", unix.MNT_DETACH)) }()
	if c := count(t, dir+"/tree", Limits{}); c.Bytes != 0 || c.Entries != 1 {
		t.Errorf("the same file system mounted inside was counted: %+v", c)
	}
}

// A tree that changes all the time is counted to an end, and nothing leads out.
func TestWalkWhileTheTreeChanges(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside+"/big", 4<<20)
	for i := range 100 {
		must(t, os.MkdirAll(fmt.Sprintf("%s/%d/%s", dir, i, strings.Repeat("x/", 80)), 0o700))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i = (i + 1) % 100 {
			select {
			case <-stop:
				return
			default:
			}
			a, b := fmt.Sprintf("%s/%d", dir, i), fmt.Sprintf("%s/%d/moved", dir, (i+1)%100)
			if os.Rename(a, b) == nil {
				_ = os.Symlink(outside, a)
				_ = os.Remove(a)
				_ = os.Rename(b, a)
			}
		}
	}()
	for range 30 {
		if c := count(t, dir, Limits{}); c.Bytes != 0 {
			t.Fatalf("counted what lies outside: %+v", c)
		}
	}
	close(stop)
	<-done
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	limits := Limits{Bytes: 1 << 30, Entries: 1000}
	w, err := NewWatcher(open(t, dir), limits, Count{Bytes: 1<<30 - 1<<20, Entries: 10})
	must(t, err)
	due := func(grown usage, after time.Duration) bool {
		t.Helper()
		w.seen, err = statfs(w.top) // what others do meanwhile is not the test's affair
		must(t, err)
		w.grown = grown
		is, err := w.Due(w.ended.Add(after))
		must(t, err)
		return is
	}
	for _, tc := range []struct {
		grown usage
		cost  time.Duration
		after time.Duration
		want  bool
	}{
		{usage{1 << 21, 0}, 0, time.Second, true},
		{usage{1 << 21, 0}, time.Second, 9 * time.Second, false},
		{usage{1 << 21, 0}, time.Second, 10 * time.Second, true},
		{usage{1 << 18, 0}, 0, time.Second, false},
		{usage{1 << 18, 0}, 0, leastPeriod, true},
		{usage{1 << 18, 0}, time.Second, 199 * time.Second, false},
		{usage{1 << 18, 0}, time.Second, 200 * time.Second, true},
		{usage{0, 990}, 0, time.Second, true},
	} {
		w.cost = tc.cost
		if got := due(tc.grown, tc.after); got != tc.want {
			t.Errorf("grown %+v, a walk costs %v, after %v: due %v", tc.grown, tc.cost, tc.after, got)
		}
	}
	if _, over, err := w.Walk(); over || err != nil || w.count != (Count{}) {
		t.Errorf("walk: %v %v %+v", over, err, w.count)
	}
}

// A workspace that is over its quota already may not grow, but its files may go.
func TestWatcherOfATreeThatIsOver(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", 2<<20)
	w, err := NewWatcher(open(t, dir), Limits{Bytes: 1 << 20}, Count{Bytes: 2 << 20, Entries: 1})
	must(t, err)
	if o, over, err := w.Walk(); over || err != nil {
		t.Errorf("as it was: %+v %v", o, err)
	}
	write(t, filepath.Join(dir, "b"), 1)
	if o, over, err := w.Walk(); !over || err != nil || o.Limit != "workspace_bytes" || o.Most != 2<<20 {
		t.Errorf("one byte more: %+v %v %v", o, over, err)
	}
}

// What a walk of a large tree costs.
func BenchmarkWalk(b *testing.B) {
	const files = 300_000
	dir := b.TempDir()
	for i := range files {
		if i%300 == 0 {
			must(b, os.Mkdir(fmt.Sprintf("%s/%d", dir, i/300), 0o700))
		}
		must(b, os.WriteFile(fmt.Sprintf("%s/%d/%d", dir, i/300, i), nil, 0o600))
	}
	top := open(b, dir)
	b.ReportAllocs()
	for b.Loop() {
		if c, err := Walk(top, Limits{}); err != nil || c.Entries != files+files/300 {
			b.Fatal(c, err)
		}
	}
}
