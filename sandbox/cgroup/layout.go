package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/supervisor"
)

// The controllers that carry limits.
const (
	Memory = "memory"
	Pids   = "pids"
	CPU    = "cpu"
)

var wanted = []string{Memory, Pids, CPU}

// Layout is where executions' groups go.
type Layout struct {
	// V1 maps controllers to the directory below which groups are made.
	V1 map[string]string
	// V2 is that directory of the unified hierarchy, with these controllers.
	V2            string
	V2Controllers []string
	// Why says, for each controller that can't be used, the reason.
	Why map[string]string
}

// Has reports whether limits of the controller can be enforced.
func (l Layout) Has(controller string) bool {
	return l.V1[controller] != "" || slices.Contains(l.V2Controllers, controller)
}

// Version names the kind of host: "v1", "v2", "hybrid" or "none".
func (l Layout) Version() string {
	switch {
	case len(l.V1) > 0 && len(l.V2Controllers) > 0:
		return "hybrid"
	case len(l.V1) > 0:
		return "v1"
	case len(l.V2Controllers) > 0:
		return "v2"
	}
	return "none"
}

// groupDir is the directory, in each hierarchy, that holds all executions.
const groupDir = "skerry"

// Setup finds the hierarchies below own group of this process and prepares a
// directory in each. Hierarchies that can't be used are reported in Why, not as
// an error. On version 2 it may have to move this process: into a scope of its
// own, where systemd has not left it the group that it is in, and into a leaf
// there, as a group with processes can't hand its controllers down.
func Setup() (Layout, error) {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, err
	}
	own, err := readOwn("/proc/self/cgroup")
	if err != nil {
		return Layout{}, err
	}
	refused := error(nil)
	if needsScope(mounts, own[""]) {
		if refused = joinScope(); refused == nil {
			if own, err = readOwn("/proc/self/cgroup"); err != nil {
				return Layout{}, err
			}
		}
	}
	l := setup(mounts, own)
	for c, why := range l.Why {
		if refused != nil {
			l.Why[c] = why + "; " + refused.Error()
		}
	}
	return l, nil
}

// needsScope tells whether limits need the unified hierarchy, and systemd has it.
func needsScope(m mounts, own string) bool {
	missing := slices.ContainsFunc(wanted, func(c string) bool { return m.v1[c] == "" })
	return m.v2 != "" && missing && systemdRuns() && !(delegated(base(m.v2, own)) && restartable(own))
}

func setup(mounts mounts, own map[string]string) Layout {
	l := Layout{V1: map[string]string{}, Why: map[string]string{}}
	for _, c := range wanted {
		mount, ok := mounts.v1[c]
		if !ok {
			continue
		}
		dir, err := prepareV1(mount, own[c])
		if err != nil {
			l.Why[c] = err.Error()
			continue
		}
		l.V1[c] = dir
	}
	if mounts.v2 != "" {
		l.setupV2(mounts.v2, own[""])
	}
	for _, c := range wanted {
		if !l.Has(c) && l.Why[c] == "" {
			l.Why[c] = "no hierarchy with this controller is mounted"
		}
	}
	return l
}

// prepareV1 makes the directory in the process's own group or, where that isn't
// visible (a container without a cgroup name space), at the mount's root.
func prepareV1(mount, own string) (string, error) {
	base := filepath.Join(mount, own)
	if _, err := os.Stat(base); err != nil {
		base = mount
	}
	dir := filepath.Join(base, groupDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make control group: %w", err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return "", fmt.Errorf("control group %s is not writable: %w", dir, err)
	}
	return dir, nil
}

// Limits of one execution; zero means none.
type Limits struct {
	MemoryBytes int64
	MaxProcs    int64
	CPUs        float64
}

// period of the CPU quota in microseconds.
const period = 100_000

// Dirs gives the directories for one execution, named by id.
func (l Layout) Dirs(id string, limits Limits) []supervisor.CgroupDir {
	settings := map[string][2][]supervisor.CgroupSetting{} // v1, v2
	if n := limits.MemoryBytes; n > 0 {
		settings[Memory] = memorySettings(n)
	}
	if n := limits.MaxProcs; n > 0 {
		s := []supervisor.CgroupSetting{{File: "pids.max", Value: strconv.FormatInt(n, 10)}}
		settings[Pids] = [2][]supervisor.CgroupSetting{s, s}
	}
	if limits.CPUs > 0 {
		settings[CPU] = cpuSettings(limits.CPUs)
	}
	var dirs []supervisor.CgroupDir
	v2 := supervisor.CgroupDir{Path: filepath.Join(l.V2, id), V2: true}
	for _, c := range slices.Sorted(maps.Keys(settings)) {
		switch {
		case l.V1[c] != "":
			dirs = append(dirs, supervisor.CgroupDir{Path: filepath.Join(l.V1[c], id), Controllers: []string{c}, Settings: settings[c][0]})
		case slices.Contains(l.V2Controllers, c):
			v2.Controllers = append(v2.Controllers, c)
			v2.Settings = append(v2.Settings, settings[c][1]...)
		}
	}
	if len(v2.Controllers) > 0 {
		dirs = append(dirs, v2)
	}
	return dirs
}

// memorySettings leave no swap, whether or not the kernel accounts for it.
func memorySettings(n int64) [2][]supervisor.CgroupSetting {
	v := strconv.FormatInt(n, 10)
	return [2][]supervisor.CgroupSetting{
		{
			{File: "memory.limit_in_bytes", Value: v},
			{File: "memory.memsw.limit_in_bytes", Value: v, Optional: true},
		},
		{
			{File: "memory.max", Value: v},
			{File: "memory.swap.max", Value: "0", Optional: true},
			// One process killed would leave a crippled job: end it as a whole.
			{File: "memory.oom.group", Value: "1", Optional: true},
		},
	}
}

func cpuSettings(cpus float64) [2][]supervisor.CgroupSetting {
	quota := strconv.Itoa(max(1000, int(math.Round(cpus*period))))
	return [2][]supervisor.CgroupSetting{
		{
			{File: "cpu.cfs_period_us", Value: strconv.Itoa(period)},
			{File: "cpu.cfs_quota_us", Value: quota},
		},
		{{File: "cpu.max", Value: quota + " " + strconv.Itoa(period)}},
	}
}
