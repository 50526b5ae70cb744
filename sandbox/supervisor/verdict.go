package supervisor

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/diskquota"
)

// outcome is all that the shim learnt about how an execution ended.
type outcome struct {
	cause    Kind   // timed_out or cancelled if the shim ended it, else empty
	reason   string // why, for cause
	end      *leaderEnd
	failure  *startFailure // exec failed inside
	broken   string        // the sandbox itself could not be set up
	oomKills int64
	usage    *Usage          // as init counted it
	limit    string          // that the cause quota_exceeded names
	full     *diskquota.Over // the file system's own quota is used up
}

// verdict decides how an execution ended. A leader that ended by itself before
// the shim wished it to keeps its own verdict: end is then set and cause isn't.
func (o outcome) verdict() Exit {
	switch {
	case o.cause != "" && o.end == nil:
		return Exit{Kind: o.cause, Detail: o.reason, Signal: "SIGKILL", Limit: o.limit}
	case o.cause != "":
		return Exit{Kind: o.cause, Detail: o.reason + "; the command " + describe(o.end.status), Signal: signalOf(o.end.status), Limit: o.limit}
	case o.failure != nil:
		return o.failure.verdict()
	case o.broken != "":
		return Exit{Kind: KindStartFailed, Detail: o.broken}
	case o.end == nil && o.oomKills > 0:
		return oomKilled(o.oomKills)
	case o.end == nil:
		return Exit{Kind: KindSignaled, Signal: "SIGKILL", Detail: "the sandbox's init ended without a report of the command's status"}
	}
	return o.ended()
}

func (o outcome) ended() Exit {
	status := o.end.status
	e := Exit{Kind: KindSignaled, Signal: signalOf(status)}
	if status.Exited() {
		code := status.ExitStatus()
		e = Exit{Kind: KindExited, Code: &code}
	}
	failed := !status.Exited() || status.ExitStatus() != 0
	switch {
	case failed && o.oomKills > 0:
		oom := oomKilled(o.oomKills)
		oom.Code, oom.Signal = e.Code, e.Signal
		return oom
	case status.Signaled() && status.Signal() == syscall.SIGXFSZ:
		e.Kind, e.Limit, e.Detail = KindQuotaExceeded, "file_size", "a file grew over the limit of a single file's size"
	case failed && o.full != nil:
		e.Kind, e.Limit = KindQuotaExceeded, o.full.Limit
		e.Detail = fmt.Sprintf("the command failed and the workspace's quota is used up: %d of %d (%s)", o.full.Have, o.full.Most, o.full.Limit)
	}
	return e
}

func oomKilled(n int64) Exit {
	return Exit{Kind: KindOOMKilled, Limit: "memory", Detail: fmt.Sprintf("the kernel killed %d process(es): the memory limit was reached", n)}
}

// verdict gives the codes that a shell uses: 127 not found, 126 not executable.
func (f startFailure) verdict() Exit {
	code := 126
	detail := f.what + ": " + f.errno.Error()
	switch f.errno {
	case syscall.ENOENT:
		code, detail = 127, "program not found: "+f.what
	case syscall.EACCES:
		detail = "permission denied: " + f.what
	}
	return Exit{Kind: KindStartFailed, Code: &code, Detail: detail}
}

func describe(s syscall.WaitStatus) string {
	if s.Exited() {
		return fmt.Sprintf("exited with %d", s.ExitStatus())
	}
	return "was ended by " + signalOf(s)
}

func signalOf(s syscall.WaitStatus) string {
	if !s.Signaled() {
		return ""
	}
	if name := unix.SignalName(s.Signal()); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s.Signal()))
}

func timeoutReason(limit time.Duration) string {
	return fmt.Sprintf("the time limit of %s passed", limit)
}
