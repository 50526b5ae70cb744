package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// State is what Attach finds in an execution's directory.
type State string

// The states of an execution's directory.
const (
	// StateRunning: a shim holds the lock.
	StateRunning State = "running"
	// StateExited: there is a verdict.
	StateExited State = "exited"
	// StateNeverStarted: no shim got as far as starting the command, and none
	// ever will; running it under a new directory is not a repetition.
	StateNeverStarted State = "never_started"
	// StateLost: the command was started, its shim is dead (the host went down
	// or the shim was killed) and its end is not known. Nothing of it is alive.
	StateLost State = "lost"
)

// Status is a moment of a running execution.
type Status struct {
	State     State     `json:"state"`
	ShimPID   int       `json:"shimPid,omitempty"`
	LeaderPID int       `json:"leaderPid,omitempty"` // on the host; 0 before the start
	Started   time.Time `json:"started,omitzero"`
	// Awaiting: the sandbox's init has not connected yet (LaunchConnect).
	Awaiting bool `json:"awaiting,omitempty"`
	// Stopping is timed_out or cancelled while the command is being ended.
	Stopping Kind     `json:"stopping,omitempty"`
	Log      LogStats `json:"log"`
	// InputBytes is how much input an interactive execution was given.
	InputBytes uint64 `json:"inputBytes,omitempty"`
}

// resolve tells the state of dir for good. For an execution without a shim it
// writes the final word itself: void if the command never started, a lost
// verdict if it did.
func resolve(dir string) (State, error) {
	unlock, err := lockToResolve(dir)
	if errors.Is(err, errLocked) {
		return StateRunning, nil
	}
	if err != nil {
		return "", err
	}
	defer unlock()
	exit, found, err := ReadExit(dir)
	if err != nil {
		return "", err
	}
	if found {
		return stateOf(exit), nil
	}
	id, found, err := readIdentity(dir)
	if err != nil {
		return "", err
	}
	if err := killStrays(dir); err != nil {
		return "", err
	}
	if !found {
		return StateNeverStarted, writeFileDurably(dir, voidFile, nil)
	}
	return StateLost, settleLost(dir, id)
}

func stateOf(e Exit) State {
	if e.Kind == KindLost {
		return StateLost
	}
	return StateExited
}

// settleLost makes sure that nothing of a dead shim's sandbox lives on, then
// writes the verdict.
func settleLost(dir string, id shimIdentity) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	detail := "the host was restarted while the command ran; how far it came is not known"
	if boot == id.BootID {
		detail = "the supervisor died while the command ran; how far it came is not known"
		if err := id.Init.killAndWait(); err != nil {
			return fmt.Errorf("end a lost sandbox: %w", err)
		}
	}
	if spec, err := readSpec(filepath.Join(dir, specFile)); err == nil {
		cgroups(spec.Cgroups).kill()
		if err := cgroups(spec.Cgroups).remove(); err != nil {
			detail += "; " + err.Error()
		}
	}
	stats, err := scanStats(dir)
	if err != nil {
		detail += "; " + err.Error()
	}
	to, err := newPendingFile(dir, exitFile)
	if err != nil {
		return fmt.Errorf("write exit: %w", err)
	}
	defer to.close()
	return Exit{Kind: KindLost, Detail: detail, Ended: time.Now(), Log: stats}.publish(to)
}

func parseStatus(b []byte) (Status, error) {
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("shim's status: %w", err)
	}
	return s, nil
}
