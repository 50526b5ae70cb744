// Package skerryv1 is the API: generated messages and, in this file, the words
// that their string fields take.
package skerryv1

// States of an execution.
const (
	StateQueued    = "queued"
	StateRunning   = "running"
	StateCompleted = "completed"
	StateFailed    = "failed"
	StateCancelled = "cancelled"
	StateUnknown   = "unknown"
)

// Kinds of a verdict.
const (
	VerdictExited        = "exited"
	VerdictSignaled      = "signaled"
	VerdictTimedOut      = "timed_out"
	VerdictCancelled     = "cancelled"
	VerdictOOMKilled     = "oom_killed"
	VerdictQuotaExceeded = "quota_exceeded"
	VerdictStartFailed   = "start_failed"
	VerdictLost          = "lost"
)

// States of a workspace and of a runner.
const (
	WorkspaceReady       = "ready"
	WorkspaceNeedsRepair = "needs_repair"
	WorkspaceRestoring   = "restoring"
	WorkspaceFenced      = "fenced"
	RunnerUp             = "up"
	RunnerDown           = "down"
)

// What a runner may get, beside its state: empty is everything.
const (
	// RunnerCordoned: no new workspaces.
	RunnerCordoned = "cordoned"
	// RunnerDraining: no new executions either; what runs is being waited for.
	RunnerDraining = "draining"
	RunnerDrained  = "drained"
)

// States of a transfer and outcomes of its files, beside those of an execution.
const (
	StatePartial = "partial"
	FilePending  = "pending"
	FileCopying  = "copying"
)

// What a different file at a transfer's target means.
const (
	ConflictReject    = "reject"
	ConflictOverwrite = "overwrite"
)

// Routes of a transfer's content.
const (
	RouteLocal  = "local"
	RouteDirect = "direct"
	RouteRelay  = "relay"
)

// Policies of replication.
const (
	ReplicateNone     = "none"
	ReplicateOnCommit = "on_commit"
	ReplicateInterval = "interval"
)

// States of a branch.
const (
	BranchAway = "away"
	BranchKept = "kept"
)

// Roles of a token.
const (
	RoleAgent  = "agent"
	RoleAdmin  = "admin"
	RoleRunner = "runner"
)

// Permissions of an agent's token. Files is the base, which every token has.
const (
	PermissionFiles        = "files"
	PermissionShell        = "shell"
	PermissionEnvironments = "environments"
	PermissionNPU          = "npu"
	PermissionTransfer     = "transfer"
)

// Headers that a coordinator sets on calls that it routes to a runner.
const (
	HeaderAgent     = "Skerry-Agent"
	HeaderWorkspace = "Skerry-Workspace"
	HeaderEpoch     = "Skerry-Epoch"
	// HeaderOnlyKnown, when set, is why nothing new may be started: the schedule of
	// the runner. A repeat of an idempotency key is answered all the same.
	HeaderOnlyKnown = "Skerry-Only-Known"
	// HeaderNetworks has the network policies that the caller's token may name,
	// separated by commas; AllNetworks stands for all of them.
	HeaderNetworks = "Skerry-Network-Policies"
	// HeaderReceiver names the runner that reads through a coordinator, which
	// vouches for it; HeaderSource, set by that runner, whom it reads from.
	HeaderReceiver = "Skerry-Peer-Receiver"
	HeaderSource   = "Skerry-Peer-Source"
)

// NetworkNone is the network policy that every runner has: no network.
const NetworkNone = "none"

// AllNetworks in HeaderNetworks is all policies of the runner.
const AllNetworks = "*"

// TransferEnded reports whether a transfer in this state has ended. An unknown
// one counts as ended, though it may still resolve to the truth.
func TransferEnded(state string) bool { return state == StatePartial || Terminal(state) }

// Terminal reports whether an execution in this state has ended. An unknown
// one counts as ended, though it may still resolve to the truth.
func Terminal(state string) bool {
	switch state {
	case StateCompleted, StateFailed, StateCancelled, StateUnknown:
		return true
	}
	return false
}
