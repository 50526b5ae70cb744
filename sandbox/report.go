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

// AtLeast reports whether t is at least as strong as other. An unknown tier is
// weaker than any.
func (t Tier) AtLeast(other Tier) bool {
	return slices.Index(tiers, t) >= slices.Index(tiers, other) && slices.Contains(tiers, other)
}

// Names of guarantees, as Require takes them.
const (
	Bubblewrap      = "bubblewrap"
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
var needed = []string{Bubblewrap, UserNamespaces, ProcMount, Seccomp, NetworkNoneG, NestedUserns}

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
func (r Report) tier() Tier {
	switch {
	case r.Require(needed...) != nil:
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
	fmt.Fprintf(&b, "tier: %s\n", r.Tier)
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
