package supervisor

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The control socket is a SOCK_SEQPACKET pair between shim and init, or a
// connection that init made (see LaunchConnect). The shim
// learns the senders' host pids from the kernel (SCM_CREDENTIALS).
//
//	shim -> init    config (text) and 'S' secrets, sent before init exists; 'T' terminate, 'K' kill all, 'P' hang up, 'C' connect
//	init -> shim    'H' hello; 'X' start failed; 'E' leader ended; 'U' usage, the last; 'I' input, 'D' connected
//	leader -> shim  'R' ready, before it executes the command; answered by 'G' go
//
// The leader waits for 'G' so that it is in its control groups, and its
// identity on disk, before the first instruction of the command.
const (
	msgTerm  = 'T'
	msgKill  = 'K'
	msgGo    = 'G'
	msgHello = 'H'
	msgReady = 'R'
	msgFail  = 'X'
	msgEnd   = 'E'
	msgUsage = 'U'
	// Of interactive executions, see terminal.go, and of connect.go.
	msgStdin     = 'I' // init -> shim, with the shim's end of the input
	msgHangUp    = 'P' // shim -> init
	msgConnect   = 'C'
	msgConnected = 'D'
)

const (
	controlName   = "control"
	maxControlMsg = 4096
)

// initConfig is what init must know besides its command line.
type initConfig struct {
	drain   time.Duration
	limits  []rlimit
	forward *Forward
	input   *Input
	files   []string // names of the descriptors that come with it, after 0, 1 and 2
	secrets int      // messages that follow, see Secret
}

type rlimit struct {
	resource int
	value    uint64
}

// initConfig is the same however init and shim meet.
func (s *Spec) initConfig() initConfig {
	return initConfig{drain: s.Drain, limits: s.rlimits(), forward: s.Forward, secrets: len(s.Secrets), input: s.Input}
}

// encode gives "drain=NANOS", "rlimit=RESOURCE:VALUE", "forward=PORT:SOCKET",
// "file=NAME", "secrets=NUMBER" and "input=..." lines.
func (c initConfig) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "drain=%d\n", c.drain.Nanoseconds())
	for _, l := range c.limits {
		fmt.Fprintf(&b, "rlimit=%d:%d\n", l.resource, l.value)
	}
	if c.forward != nil {
		fmt.Fprintf(&b, "forward=%s\n", c.forward.encode())
	}
	if c.input != nil {
		fmt.Fprintf(&b, "input=%s\n", c.input.encode())
	}
	for _, name := range c.files {
		fmt.Fprintf(&b, "file=%s\n", name)
	}
	if c.secrets > 0 {
		fmt.Fprintf(&b, "secrets=%d\n", c.secrets)
	}
	return []byte(b.String())
}

func parseInitConfig(b []byte) (initConfig, error) {
	var c initConfig
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		var err error
		switch key {
		case "drain":
			var n int64
			n, err = strconv.ParseInt(value, 10, 64)
			c.drain = time.Duration(n)
		case "rlimit":
			err = c.addLimit(value)
		case "forward":
			c.forward, err = parseForward(value)
		case "input":
			c.input, err = parseInput(value)
		case "file":
			c.files = append(c.files, value)
		case "secrets":
			c.secrets, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return c, fmt.Errorf("init config: %w", err)
		}
	}
	return c, nil
}

func (c *initConfig) addLimit(s string) error {
	resource, value, _ := strings.Cut(s, ":")
	r, err := strconv.Atoi(resource)
	if err != nil {
		return err
	}
	v, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return err
	}
	c.limits = append(c.limits, rlimit{r, v})
	return nil
}

// rlimits of the leader. Processes and memory are limited here only where no
// control group does it, since these limits count per user and per process.
func (s *Spec) rlimits() []rlimit {
	limits := []rlimit{{unix.RLIMIT_CORE, s.Limits.Core}}
	add := func(resource int, v uint64) {
		if v > 0 {
			limits = append(limits, rlimit{resource, v})
		}
	}
	add(unix.RLIMIT_NOFILE, s.Limits.NoFile)
	add(unix.RLIMIT_FSIZE, s.Limits.FileSize)
	if !s.limitedByCgroup("pids") {
		add(unix.RLIMIT_NPROC, s.Limits.MaxProcs)
	}
	if !s.limitedByCgroup("memory") {
		add(unix.RLIMIT_DATA, s.Limits.MemoryBytes)
	}
	return limits
}

// leaderEnd is the payload of msgEnd.
type leaderEnd struct {
	status syscall.WaitStatus
	maxRSS int64 // bytes
}

func (l leaderEnd) encode() []byte {
	b := append(make([]byte, 0, 16), msgEnd)
	b = binary.LittleEndian.AppendUint32(b, uint32(l.status))
	return binary.LittleEndian.AppendUint64(b, uint64(l.maxRSS))
}

func parseLeaderEnd(b []byte) (leaderEnd, bool) {
	if len(b) != 13 {
		return leaderEnd{}, false
	}
	return leaderEnd{
		status: syscall.WaitStatus(binary.LittleEndian.Uint32(b[1:])),
		maxRSS: int64(binary.LittleEndian.Uint64(b[5:])),
	}, true
}

// startFailure is the payload of msgFail: what failed, and why.
type startFailure struct {
	errno syscall.Errno
	what  string
}

func (f startFailure) encode() []byte {
	b := append(make([]byte, 0, 64), msgFail)
	b = binary.LittleEndian.AppendUint32(b, uint32(f.errno))
	return append(b, f.what[:min(len(f.what), maxControlMsg-8)]...)
}

func parseStartFailure(b []byte) (startFailure, bool) {
	if len(b) < 5 {
		return startFailure{}, false
	}
	return startFailure{syscall.Errno(binary.LittleEndian.Uint32(b[1:])), string(b[5:])}, true
}

func controlPair() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("control socket: %w", err)
	}
	if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return -1, -1, fmt.Errorf("control socket: %w", err)
	}
	return fds[0], fds[1], nil
}

// recvControl reads one message, the host pid of its sender and the descriptor
// that came with it, or -1, which is the caller's. A zero length means that every
// holder of the other end is gone.
func recvControl(fd int, buf []byte) (n, pid, file int, err error) {
	oob := make([]byte, 64)
	n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return n, 0, -1, err
	}
	file = firstFile(oob[:oobn])
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return n, 0, file, err
	}
	for i := range msgs {
		if cred, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			return n, int(cred.Pid), file, nil
		}
	}
	return n, 0, file, nil
}
