package supervisor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Usage is what the command and all that it started consumed, until the last of
// its processes was gone.
//
// Init sums it from the processes that it reaps: each brings what it used itself
// and what the children used that it waited for. Not in it are the sandbox's own
// processes and children of a process that ignores SIGCHLD, which the kernel
// drops; of processor time a control group knows those too. If init could not
// end the rest in order, the figures are of bubblewrap, init and what it reaped.
type Usage struct {
	UserMicros   int64 `json:"userMicros"`
	SystemMicros int64 `json:"systemMicros"`
	// MaxRSSBytes is the largest resident set of any one process; for one that
	// executed no program, at least init's own (a few MiB).
	MaxRSSBytes int64 `json:"maxRssBytes"`
	// PeakMemoryBytes of all processes together; 0 without a memory cgroup.
	PeakMemoryBytes int64 `json:"peakMemoryBytes,omitempty"`
	// ReadBytes came from storage, not from the page cache; WrittenBytes made
	// pages dirty that storage must take, when they did so (ru_inblock and
	// ru_oublock, in blocks of 512 bytes). A group's own counters are not used:
	// they miss what is written back after its end.
	ReadBytes    int64 `json:"readBytes,omitempty"`
	WrittenBytes int64 `json:"writtenBytes,omitempty"`
}

// rusageBlock is the unit of ru_inblock and ru_oublock.
const rusageBlock = 512

// add counts a process that was reaped.
func (u *Usage) add(r *syscall.Rusage) {
	u.UserMicros += r.Utime.Nano() / 1000
	u.SystemMicros += r.Stime.Nano() / 1000
	u.MaxRSSBytes = max(u.MaxRSSBytes, r.Maxrss<<10)
	u.ReadBytes += r.Inblock * rusageBlock
	u.WrittenBytes += r.Oublock * rusageBlock
}

// encode gives the payload of msgUsage.
func (u *Usage) encode() []byte {
	b := append(make([]byte, 0, 48), msgUsage)
	for _, v := range []int64{u.UserMicros, u.SystemMicros, u.MaxRSSBytes, u.ReadBytes, u.WrittenBytes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func parseUsage(b []byte) (Usage, bool) {
	var u Usage
	fields := []*int64{&u.UserMicros, &u.SystemMicros, &u.MaxRSSBytes, &u.ReadBytes, &u.WrittenBytes}
	if len(b) != 1+8*len(fields) {
		return u, false
	}
	for i, f := range fields {
		*f = int64(binary.LittleEndian.Uint64(b[1+8*i:]))
	}
	return u, true
}

// usage is asked for when all processes are dead and the groups still there.
func (r *run) usage() Usage {
	var u Usage
	switch {
	case r.out.usage != nil:
		u = *r.out.usage
	case r.reaper != nil:
		u = r.reaper.usage()
	}
	u.PeakMemoryBytes = r.cgroups.peakMemory()
	if user, system, ok := r.cgroups.cpuTime(); ok && user+system > u.UserMicros+u.SystemMicros {
		u.UserMicros, u.SystemMicros = user, system
	}
	return u
}

// cpuTime in microseconds, where a group tells: each of version 2, and one of
// version 1 that has cpuacct mounted together with cpu.
func (g cgroups) cpuTime() (user, system int64, ok bool) {
	for _, dir := range g {
		if dir.V2 {
			user, okUser := cgroupKey(dir.Path, "cpu.stat", "user_usec")
			system, okSystem := cgroupKey(dir.Path, "cpu.stat", "system_usec")
			return user, system, okUser && okSystem
		}
		user, okUser := cgroupNumber(dir.Path, "cpuacct.usage_user")
		system, okSystem := cgroupNumber(dir.Path, "cpuacct.usage_sys")
		if okUser && okSystem {
			return user / 1000, system / 1000, true
		}
	}
	return 0, 0, false
}

func cgroupNumber(dir, file string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
