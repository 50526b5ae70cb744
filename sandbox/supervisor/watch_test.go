package supervisor

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exhaustInotify takes every inotify instance that the user may have, as many
// followers of logs would.
func exhaustInotify(t *testing.T) {
	t.Helper()
	for range 1 << 14 {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	t.Skip("this host allows more inotify instances than the test takes")
}

// Without inotify a follower still gets each byte and its end, and a waiter the
// verdict, not an error that would be taken for a lost execution.
func TestF14FollowAndWaitWithoutInotify(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "echo one; sleep 0.5; echo two")
	started := f.start(t)
	exhaustInotify(t)
	attached := &Handle{dir: started.Dir()} // as found after a restart
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got []byte
	for page, err := range OpenLog(f.dir).Follow(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Records {
			got = append(got, r.Data...)
		}
	}
	if string(got) != "one\ntwo\n" {
		t.Fatalf("followed %q", got)
	}
	exit, err := attached.Wait(ctx)
	if err != nil || exit.Kind != KindExited {
		t.Fatalf("%+v %v", exit, err)
	}
}

// A daemon without a free descriptor must not take a running execution for lost.
func TestWaitOutlastsALackOfDescriptors(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "sleep 0.6; exit 3")
	attached := &Handle{dir: f.start(t).Dir()} // as found after a restart
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	timer := time.AfterFunc(300*time.Millisecond, restore)
	defer timer.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	exit, err := attached.Wait(ctx)
	restore()
	if err != nil || exit.Kind != KindExited || *exit.Code != 3 {
		t.Fatalf("%+v %v", exit, err)
	}
}
