package coordinator

import (
	"net"
	"net/url"
	"time"

	"skerry.internal/config"
)

// Cluster says how this coordinator belongs to a cluster of several. Listen
// empty: it is the only one.
type Cluster struct {
	// Listen is host:port of Raft, mutually authenticated by the cluster's
	// certificates; Advertise is how the others reach it, Listen when empty.
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise"`
	// Bootstrap makes a new cluster, Join enters an existing one through any of
	// these coordinators. Both act on an empty data_dir alone.
	Bootstrap     bool     `yaml:"bootstrap"`
	Join          []string `yaml:"join"`
	JoinTokenFile string   `yaml:"join_token_file"`
	// Stabilization is how long a joined coordinator must have followed the log
	// closely before it gets a vote.
	Stabilization config.Duration `yaml:"stabilization"`
	// RemoveDeadAfter takes a coordinator that has not answered for so long out of
	// the cluster; 0: only "skerry cluster remove" does.
	RemoveDeadAfter config.Duration `yaml:"remove_dead_after"`
}

// Enabled reports whether there may be other coordinators.
func (c Cluster) Enabled() bool { return c.Listen != "" }

// RaftAddress is where the others reach this coordinator's Raft.
func (c Cluster) RaftAddress() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	return c.Listen
}

const (
	// A lone coordinator waits for nobody.
	loneTimeout = 50 * time.Millisecond
	// In a cluster the time must bridge a pause of the garbage collector or of the
	// disk, and a fail-over still end within 3 s: two time-outs, each up to twice
	// as long, an election and the first commit.
	clusterTimeout = 700 * time.Millisecond
)

// withDefaults fills in what depends on other values.
func (c Config) withDefaults() Config {
	timeout := loneTimeout
	if c.Cluster.Enabled() {
		timeout = clusterTimeout
	}
	if c.Raft.HeartbeatTimeout == 0 {
		c.Raft.HeartbeatTimeout = config.Duration(timeout)
	}
	if c.Raft.ElectionTimeout == 0 {
		c.Raft.ElectionTimeout = max(config.Duration(timeout), c.Raft.HeartbeatTimeout)
	}
	return c
}

func (c *Config) validateCluster() error {
	if !namePattern.MatchString(c.Name) {
		return bad("name", "is no valid name", nameRemedy)
	}
	if !c.Cluster.Enabled() {
		return c.validateLone()
	}
	if err := checkReachable("cluster.advertise", c.Cluster.RaftAddress(), c.Cluster.Listen); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(c.Cluster.Listen); err != nil {
		return bad("cluster.listen", "is no host:port", "write for example 10.0.0.1:7422")
	}
	u, err := url.Parse(c.Advertise)
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
		return bad("advertise", "is no https://host:port", "write how the other coordinators and the runners reach this one's API")
	}
	if err := checkReachable("advertise", u.Host, c.Listen); err != nil {
		return err
	}
	switch k := c.Cluster; {
	case k.Bootstrap && len(k.Join) > 0:
		return bad("cluster", "both bootstrap and join are set", "bootstrap the first coordinator alone, the others join it")
	case k.Stabilization < 0 || k.RemoveDeadAfter < 0:
		return bad("cluster", "a time is negative", "use 0 or more")
	case k.RemoveDeadAfter > 0 && k.RemoveDeadAfter.D() < time.Minute:
		return bad("cluster.remove_dead_after", "is under 1m, which a restart may take", "use 1h, or 0 for never")
	}
	return nil
}

func (c *Config) validateLone() error {
	if k := c.Cluster; k.Bootstrap || len(k.Join) > 0 || k.Advertise != "" {
		return bad("cluster.listen", "is empty", "set the host:port of Raft, or leave the other keys of cluster out")
	}
	return nil
}

// checkReachable refuses an address that means another host on each host (F48).
func checkReachable(field, address, listen string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || port == "0" {
		return bad(field, "is no host:port", "write for example 10.0.0.1:7422")
	}
	ip := net.ParseIP(host)
	if host == "" || (ip != nil && ip.IsUnspecified()) {
		return bad(field, "is no address that others could dial: "+address, "name this host's address or DNS name")
	}
	own, _, err := net.SplitHostPort(listen)
	if err == nil && loopback(host) && !loopback(own) {
		return bad(field, "is a loopback address, which means another host to each: "+address, "name this host's address or DNS name")
	}
	return nil
}
