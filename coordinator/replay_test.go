package coordinator

import (
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

func TestReplayGivesTheBodyAgain(t *testing.T) {
	for _, size := range []int{0, 1, maxReplay, maxReplay + 1} {
		want := strings.Repeat("x", size)
		body := newReplay(iotest.OneByteReader(strings.NewReader(want)))
		first := body.next()
		if _, err := io.CopyN(io.Discard, first, int64(size/2)); err != nil {
			t.Fatal(err)
		}
		if !body.rewind() {
			t.Fatalf("%d bytes: half cannot be sent again", size)
		}
		second := body.next()
		if size > 0 {
			if _, err := first.Read(make([]byte, 1)); !errors.Is(err, errReplaced) {
				t.Errorf("the attempt before still reads: %v", err)
			}
		}
		got, err := io.ReadAll(second)
		if err != nil || string(got) != want {
			t.Errorf("%d bytes: %d came, %v", size, len(got), err)
		}
		if again := body.rewind(); again != (size <= maxReplay) {
			t.Errorf("%d bytes: to be sent again is %v", size, again)
		}
	}
}

// A body whose next piece is being waited for cannot be sent from its start.
func TestReplayWaitsForNobody(t *testing.T) {
	in := &announcing{reading: make(chan bool), data: make(chan string)}
	body := newReplay(in)
	attempt := body.next()
	read := make(chan error, 1)
	go func() {
		_, err := attempt.Read(make([]byte, 1))
		read <- err
	}()
	<-in.reading
	if body.rewind() {
		t.Error("rewound under a reader")
	}
	in.data <- "x"
	if err := <-read; err != nil || !body.rewind() {
		t.Errorf("afterwards: %v", err)
	}
}

// announcing is a reader that says when it is being waited for.
type announcing struct {
	reading chan bool
	data    chan string
}

// Read implements io.Reader.
func (a *announcing) Read(p []byte) (int, error) {
	a.reading <- true
	return copy(p, <-a.data), nil
}

// A call passes only on a confirmation that began after it came, and calls that
// wait share one.
func TestReadGateSharesLaterRounds(t *testing.T) {
	var rounds atomic.Int32
	begun, release := make(chan bool), make(chan error)
	gate := newReadGate(func() error {
		rounds.Add(1)
		begun <- true
		return <-release
	})
	results := make(chan error, 100)
	pass := func() { results <- gate.pass(t.Context()) }
	go pass()
	<-begun
	var waiting sync.WaitGroup
	for range 50 {
		waiting.Go(pass)
	}
	for gate.waiters() < 1 { // all of them join the one round that is next
		time.Sleep(time.Millisecond)
	}
	release <- nil
	if err := <-results; err != nil {
		t.Error(err)
	}
	<-begun
	release <- errDeposed
	served := make(chan bool)
	go func() { waiting.Wait(); close(served) }()
	for done := false; !done; {
		select {
		case <-begun: // one that came late has a round of its own
			release <- errDeposed
		case <-served:
			done = true
		}
	}
	for range 50 {
		if err := <-results; !errors.Is(err, errDeposed) {
			t.Errorf("passed on a confirmation of before: %v", err)
		}
	}
	if n := rounds.Load(); n > 10 {
		t.Errorf("%d rounds for 51 calls", n)
	}
}

func (g *readGate) waiters() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != nil {
		return 1
	}
	return 0
}

// waitingBody closes as a transport's does: only once the call has ended.
type waitingBody struct {
	io.Reader
	ended <-chan struct{}
}

func (b waitingBody) Close() error { <-b.ended; return nil }

func TestRelayedCallEndsBeforeItsBodyIsClosed(t *testing.T) {
	ended := make(chan struct{})
	body := withEnd(waitingBody{strings.NewReader(""), ended}, func() { close(ended) })
	closed := make(chan error, 1)
	go func() { closed <- body.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Close waits for a caller that leaves its stream open")
	}
}
