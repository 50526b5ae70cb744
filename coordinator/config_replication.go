package coordinator

import (
	"time"

	"skerry.internal/config"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Replication says how heads of workspaces are copied that name no policy of
// their own, and what becomes of those on a lost runner.
type Replication struct {
	// Policy is none, on_commit or interval; Interval goes with the last.
	Policy   string          `yaml:"policy"`
	Interval config.Duration `yaml:"interval"`
	// ReassignAfter is how long a runner must be down until its workspaces are
	// assigned to others from their replicas; 0: never without an admin. Commits
	// after the replica come back as a branch, should the runner.
	ReassignAfter config.Duration `yaml:"reassign_after"`
}

func defaultReplication() Replication {
	return Replication{Policy: skerryv1.ReplicateNone, Interval: config.Duration(5 * time.Minute)}
}

func (c *Config) validateReplication() error {
	const least = 10 * time.Second
	switch r := c.Replication; {
	case r.Policy != skerryv1.ReplicateNone && r.Policy != skerryv1.ReplicateOnCommit && r.Policy != skerryv1.ReplicateInterval:
		return bad("replication.policy", "is none of the policies", "use none, on_commit or interval")
	case r.Interval.D() < least:
		return bad("replication.interval", "is under 10s", "use 5m")
	case r.ReassignAfter < 0:
		return bad("replication.reassign_after", "is negative", "use 0 for never")
	case r.ReassignAfter > 0 && r.ReassignAfter.D() < least:
		return bad("replication.reassign_after", "is under 10s, so that a restart would move workspaces", "use 10m")
	}
	return nil
}
