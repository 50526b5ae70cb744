package document

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/supervisor"
)

// Limits that the supervisor applies to the leader, whatever control groups do.
func Limits(spec *specs.Spec) supervisor.Limits {
	var l supervisor.Limits
	for _, r := range spec.Process.Rlimits {
		switch r.Type {
		case "RLIMIT_CORE":
			l.Core = r.Hard
		case "RLIMIT_NOFILE":
			l.NoFile = r.Hard
		case "RLIMIT_FSIZE":
			l.FileSize = r.Hard
		}
	}
	r := spec.Linux.Resources
	if r == nil {
		return l
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		l.MaxProcs = uint64(*r.Pids.Limit)
	}
	if r.Memory != nil && r.Memory.Limit != nil {
		l.MemoryBytes = uint64(*r.Memory.Limit)
	}
	if r.CPU != nil && r.CPU.Quota != nil && r.CPU.Period != nil && *r.CPU.Period > 0 {
		l.CPUs = float64(*r.CPU.Quota) / float64(*r.CPU.Period)
	}
	return l
}
