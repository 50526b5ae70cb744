package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Kind is how an execution ended.
type Kind string

// The kinds of verdict.
const (
	KindExited        Kind = "exited"
	KindSignaled      Kind = "signaled"
	KindTimedOut      Kind = "timed_out"
	KindCancelled     Kind = "cancelled"
	KindOOMKilled     Kind = "oom_killed"
	KindQuotaExceeded Kind = "quota_exceeded"
	KindStartFailed   Kind = "start_failed"
	KindLost          Kind = "lost"
)

// Exit is the verdict of an execution. When one exists, no process of the
// sandbox is alive.
type Exit struct {
	Kind Kind `json:"kind"`
	// Code is the leader's exit status, where it exited by itself; for
	// start_failed it is 126 or 127, as a shell has them.
	Code *int `json:"code,omitempty"`
	// Signal that ended the leader, such as "SIGKILL".
	Signal string `json:"signal,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Limit that was passed, for quota_exceeded and oom_killed.
	Limit   string    `json:"limit,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Usage   Usage     `json:"usage"`
	Log     LogStats  `json:"log"`
	// InputBytes is how much input an interactive execution was given.
	InputBytes uint64 `json:"inputBytes,omitempty"`
}

// LogStats count payload bytes; Dropped ones were produced but are not kept.
type LogStats struct {
	TotalBytes   uint64 `json:"totalBytes"`
	DroppedBytes uint64 `json:"droppedBytes"`
	StdoutBytes  uint64 `json:"stdoutBytes"`
	StderrBytes  uint64 `json:"stderrBytes"`
}

// ReadExit gives the verdict in dir, or false while there is none. One torn by a
// power cut, before anybody was told of it, counts as none.
func ReadExit(dir string) (Exit, bool, error) {
	var e Exit
	b, err := os.ReadFile(filepath.Join(dir, exitFile))
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("read exit: %w", err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return Exit{}, false, nil //nolint:nilerr // torn by a power cut: not there
	}
	return e, true, nil
}

// publish puts the verdict into a file prepared for it. It survives a crash of
// every process, not a power cut: what the command left in its workspace may be
// gone then too, and the daemon, which commits both, must not take the verdict
// for more than that.
func (e Exit) publish(to *pendingFile) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode exit: %w", err)
	}
	if err := to.publish(b); err != nil {
		return fmt.Errorf("write exit: %w", err)
	}
	return nil
}
