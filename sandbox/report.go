package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Tier names how strong the sandbox of a host is, weakest first. Each contains
// the ones before it.
//
//	none                          no sandbox can be made: nothing runs here
//	bwrap-userns+seccomp          separate user, pid, mount, ipc, uts and network
//	                              name spaces, no capabilities, the system call
//	                              filter; limits of memory and processes hold for
//	                              single processes or the user (rlimits)
//	bwrap-userns+seccomp+cgroup   memory, processes and CPU time of an execution
//	                              are limited as a whole, and an end by lack of
//	                              memory is recognized
//	bwrap-userns+seccomp+cgroup+uid
//	                              and each agent has a host uid of its own
//
// With containerd the names begin with containerd- and mean the same: the tiers
// of both that have the same guarantees are equally strong.
//
// The tier is part of every execution's record.
type Tier string

// The tiers.
const (
	TierNone   Tier = "none"
	TierBase   Tier = "bwrap-userns+seccomp"
	TierCgroup Tier = "bwrap-userns+seccomp+cgroup"
	TierUID    Tier = "bwrap-userns+seccomp+cgroup+uid"
)

var tiers = []Tier{TierNone, TierBase, TierCgroup, TierUID}

const (
	bwrapPrefix      = "bwrap-"
	containerdPrefix = "containerd-"
)

// rank is the tier's place, -1 for an unknown one.
func (t Tier) rank() int {
	if rest, ok := strings.CutPrefix(string(t), containerdPrefix); ok {
		t = Tier(bwrapPrefix + rest)
	}
	return slices.Index(tiers, t)
}

// of gives the tier's name with the given backend.
func (t Tier) of(backend string) Tier {
	if rest, ok := strings.CutPrefix(string(t), bwrapPrefix); ok && backend == Containerd {
		return Tier(containerdPrefix + rest)
	}
	return t
}

// AtLeast reports whether t is at least as strong as other, whichever backends
// they name. An unknown tier is weaker than any.
func (t Tier) AtLeast(other Tier) bool { return t.rank() >= other.rank() && other.rank() >= 0 }

// Names of guarantees, as Require takes them.
const (
	Bubblewrap      = "bubblewrap"
	Containerd      = "containerd"
	UserNamespaces  = "user-namespaces"
	ProcMount       = "proc-mount"
	Seccomp         = "seccomp"
	NetworkNoneG    = "network-none"
	NetworkAllowed  = "network-allowlist"
	NestedUserns    = "no-nested-user-namespaces"
	MemoryLimit     = "memory-limit"
	ProcessLimit    = "process-limit"
	CPULimit        = "cpu-limit"
	CgroupNamespace = "cgroup-namespace"
	UIDSeparation   = "uid-separation"
	BindByFD        = "bind-by-descriptor"
	// ProjectQuota: the file system refuses a write over a workspace's quota.
	// Without, the quota is watched while a command runs.
	ProjectQuota = "project-quota"
)

// needed are the guarantees without which nothing runs.
func needed(backend string) []string {
	common := []string{backend, Seccomp, NetworkNoneG, NestedUserns}
	if backend == Bubblewrap {
		return append(common, UserNamespaces, ProcMount)
	}
	return common
}

// Guarantee is one property of this host's sandboxes, as probed.
type Guarantee struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Why it isn't available, or how it is.
	Why string `json:"why,omitempty"`
	// Remedy is what an administrator can do.
	Remedy string `json:"remedy,omitempty"`
}

// Report is what Probe found.
type Report struct {
	// Backend that was probed: Bubblewrap or Containerd.
	Backend    string      `json:"backend"`
	Tier       Tier        `json:"tier"`
	Guarantees []Guarantee `json:"guarantees"`
}

// ErrGuarantee says that a host can't give what was asked for.
var ErrGuarantee = errors.New("this host can't guarantee")

// Require fails if any of the guarantees is missing, with cause and remedy.
func (r Report) Require(names ...string) error {
	var errs []error
	for _, name := range names {
		g, found := r.Get(name)
		if found && g.Available {
			continue
		}
		text := name
		if g.Why != "" {
			text += ": " + g.Why
		}
		if g.Remedy != "" {
			text += " (" + g.Remedy + ")"
		}
		errs = append(errs, fmt.Errorf("%w %s", ErrGuarantee, text))
	}
	return errors.Join(errs...)
}

// Get finds a guarantee by name.
func (r Report) Get(name string) (Guarantee, bool) {
	for _, g := range r.Guarantees {
		if g.Name == name {
			return g, true
		}
	}
	return Guarantee{}, false
}

// Has reports whether the host gives the guarantee.
func (r Report) Has(name string) bool { return r.has(name) }

func (r Report) has(name string) bool {
	g, _ := r.Get(name)
	return g.Available
}

// tier derives the tier from the guarantees.
func (r Report) tier() Tier { return r.strength().of(r.Backend) }

func (r Report) strength() Tier {
	switch {
	case r.Require(needed(r.Backend)...) != nil:
		return TierNone
	case !r.has(MemoryLimit) || !r.has(ProcessLimit) || !r.has(CPULimit):
		return TierBase
	case !r.has(UIDSeparation):
		return TierCgroup
	}
	return TierUID
}

// String is the report as the doctor prints it.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "backend: %s\ntier: %s\n", r.Backend, r.Tier)
	for _, g := range r.Guarantees {
		mark := "ok     "
		if !g.Available {
			mark = "MISSING"
		}
		fmt.Fprintf(&b, "%s %s", mark, g.Name)
		if g.Why != "" {
			fmt.Fprintf(&b, ": %s", g.Why)
		}
		b.WriteByte('\n')
		if !g.Available && g.Remedy != "" {
			fmt.Fprintf(&b, "        to get it: %s\n", g.Remedy)
		}
	}
	return b.String()
}
