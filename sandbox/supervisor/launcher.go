package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Launcher starts executions on shims that are running already and wait for
// work, which takes a process's start, some 2 ms, out of the way of each. A
// waiting shim costs about 3 MiB of memory. It ends when the daemon does, or
// lets go of its standard input.
type Launcher struct {
	shimPath string
	warm     chan *warmShim

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	pending sync.WaitGroup // refills
}

// warmShim waits for a directory on its standard input.
type warmShim struct {
	end   *shimEnd
	stdin *os.File
}

// NewLauncher keeps n shims waiting. Close it to end them.
func NewLauncher(shimPath string, n int) *Launcher {
	l := &Launcher{shimPath: shimPath, warm: make(chan *warmShim, n), closing: make(chan struct{})}
	for range n {
		l.refill(nil)
	}
	return l
}

// Start is like the function Start.
func (l *Launcher) Start(ctx context.Context, dir string, spec Spec) (*Handle, error) {
	if err := prepareDir(ctx, dir, spec); err != nil {
		return nil, err
	}
	end := l.takeWarm(dir)
	if end == nil {
		var err error
		if end, err = startShim(l.shimPath, dir, nil); err != nil {
			return nil, err
		}
	}
	return &Handle{dir: dir, end: end}, nil
}

// takeWarm hands dir to a waiting shim; nil if none took it. A shim that takes
// it and dies has never started anything, and Wait says so.
func (l *Launcher) takeWarm(dir string) *shimEnd {
	for {
		select {
		case s := <-l.warm:
			l.refill(s.end)
			_, err := s.stdin.WriteString(dir + "\n")
			s.stdin.Close()
			if err == nil {
				return s.end
			}
		default:
			return nil
		}
	}
}

// refillDelay bounds how long a taken shim is not replaced.
const refillDelay = 50 * time.Millisecond

// refill starts one more waiting shim in the background: not at once but when
// the execution that took the last one is over or takes longer, since the two
// would compete for the processor. A failure only means that an execution
// starts a shim of its own.
func (l *Launcher) refill(after *shimEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.pending.Go(func() {
		if after != nil && !l.pause(after) {
			return
		}
		s, err := startWarm(l.shimPath)
		if err != nil {
			return
		}
		select {
		case l.warm <- s:
		default:
			s.stdin.Close()
		}
	})
}

// pause returns false when the launcher is closed.
func (l *Launcher) pause(after *shimEnd) bool {
	timer := time.NewTimer(refillDelay)
	defer timer.Stop()
	select {
	case <-after.reaped:
	case <-timer.C:
	case <-l.closing:
		return false
	}
	return true
}

func startWarm(shimPath string) (*warmShim, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start shim: %w", err)
	}
	defer theirs.Close()
	end, err := startShim(shimPath, warmDir, theirs)
	if err != nil {
		ours.Close()
		return nil, err
	}
	return &warmShim{end, ours}, nil
}

// Close ends the waiting shims and returns when they are gone. Executions that
// run go on.
func (l *Launcher) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	l.mu.Unlock()
	l.pending.Wait()
	for {
		select {
		case s := <-l.warm:
			s.stdin.Close()
			<-s.end.reaped
		default:
			return
		}
	}
}

// warmDir stands for a directory that is told on standard input.
const warmDir = "-"

// awaitDir gets ready and waits for the directory; it is empty if there is no
// work, which isn't an error. Standard input is /dev/null afterwards.
func awaitDir() (string, error) {
	// What is used here for the first time is then fast in earnest.
	var spec Spec
	_ = json.Unmarshal([]byte(`{"files":[{"name":"a"}],"log":{},"limits":{}}`), &spec)
	_, _ = json.Marshal(Exit{})
	line, err := io.ReadAll(io.LimitReader(os.Stdin, unix.PathMax+1))
	if err != nil {
		return "", fmt.Errorf("wait for work: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", fmt.Errorf("wait for work: %w", err)
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), unix.Stdin, 0); err != nil {
		return "", fmt.Errorf("wait for work: %w", err)
	}
	dir, complete := strings.CutSuffix(string(line), "\n")
	if !complete {
		return "", nil // the daemon died, or has no work
	}
	return dir, nil
}
