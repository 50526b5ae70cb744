package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/config"
	pki "skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"

	"connectrpc.com/connect"
)

// fleetWait is how long a call to a fleet waits for a leader.
const fleetWait = 1500 * time.Millisecond

// fleet is a cluster of coordinators in this process: real TLS on loopback, real
// stores on disk. Its network can be cut and its disks be made to hang.
type fleet struct {
	t     testing.TB
	nodes map[string]*node
	order []string
	admin string
	// configure, when set, changes the configuration of each node that starts.
	configure func(*Config)

	mu sync.Mutex
	// Ways that are cut, "from>to".
	cut map[string]bool
	// Names by host:port of Raft and of the API.
	names map[string]string
	conns map[*fleetConn]bool
}

// node is one coordinator of a fleet, running or not.
type node struct {
	*Coordinator
	fleet     *fleet
	name      string
	cfg       Config
	disk      *slowDisk
	command   atomic.Uint32
	running   bool
	serveStop context.CancelFunc
	served    chan error
	registry  *prometheus.Registry
	// What Serve gave, once it has ended.
	ended error
}

// startFleet starts n coordinators that all have a vote.
func startFleet(t testing.TB, n int) *fleet { return startFleetWith(t, n, nil) }

func startFleetWith(t testing.TB, n int, configure func(*Config)) *fleet {
	t.Helper()
	f := newFleet(t)
	f.configure = configure
	first := f.add("c1", func(cfg *Config) { cfg.Cluster.Bootstrap = true })
	first.start()
	f.until("c1 leads", first.leads)
	secret, err := os.ReadFile(filepath.Join(first.cfg.DataDir, AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	f.admin = strings.TrimSpace(string(secret))
	for i := 2; i <= n; i++ {
		f.join(fmt.Sprintf("c%d", i))
	}
	f.awaitVoters(n)
	return f
}

// newFleet has no nodes yet; those that it gets are stopped with the test.
// newFleet begins a fleet, beside those of other tests: they wait more than they work.
func newFleet(t testing.TB) *fleet {
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	f := &fleet{t: t, nodes: make(map[string]*node), cut: make(map[string]bool), names: make(map[string]string), conns: make(map[*fleetConn]bool)}
	_ = t.TempDir() // first, so that it is removed last
	t.Cleanup(f.stopAll)
	return f
}

// add makes a node that is not started yet.
func (f *fleet) add(name string, configure func(*Config)) *node {
	f.t.Helper()
	cfg := testConfig(f.t.TempDir())
	cfg.Name = name
	cfg.Raft.HeartbeatTimeout, cfg.Raft.ElectionTimeout = config.Duration(500*time.Millisecond), config.Duration(500*time.Millisecond)
	cfg.Raft.StallTimeout = config.Duration(400 * time.Millisecond)
	cfg.Cluster.Stabilization = config.Duration(200 * time.Millisecond)
	cfg.Listen, cfg.Cluster.Listen = freeAddress(f.t), freeAddress(f.t)
	cfg.Advertise = "https://" + cfg.Listen
	if configure != nil {
		configure(&cfg)
	}
	if f.configure != nil {
		f.configure(&cfg)
	}
	n := &node{fleet: f, name: name, cfg: cfg, disk: newSlowDisk()}
	n.command.Store(2)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name], f.order = n, append(f.order, name)
	f.names[cfg.Listen], f.names[cfg.Cluster.Listen] = name, name
	return n
}

// freeAddress is one that nothing listens on at the moment.
func freeAddress(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// join starts a new node that enters by a join token.
func (f *fleet) join(name string) *node {
	f.t.Helper()
	n := f.add(name, func(cfg *Config) {
		cfg.Cluster.Join = f.endpoints()
		cfg.Cluster.JoinTokenFile = f.joinTokenFile(name)
	})
	n.start()
	return n
}

func (f *fleet) joinTokenFile(name string) string {
	f.t.Helper()
	res, err := f.joins().CreateJoinToken(f.t.Context(), connect.NewRequest(&skerryv1.CreateJoinTokenRequest{Role: pki.RoleCoordinator, Name: name}))
	if err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(f.t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(res.Msg.GetSecret()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// endpoints of the nodes that run.
func (f *fleet) endpoints() []string {
	var out []string
	for _, n := range f.running() {
		out = append(out, n.cfg.Advertise)
	}
	return out
}

func (f *fleet) running() []*node {
	var out []*node
	for _, name := range f.order {
		if n := f.nodes[name]; n.running {
			out = append(out, n)
		}
	}
	return out
}

func (f *fleet) node(name string) *node { return f.nodes[name] }

// leader waits for the one that leads; others are those that don't.
func (f *fleet) leader() *node {
	f.t.Helper()
	var found *node
	f.until("a leader", func() bool {
		found = nil
		for _, n := range f.running() {
			if n.leads() && (found == nil || n.node.raft.CurrentTerm() > found.node.raft.CurrentTerm()) {
				found = n
			}
		}
		return found != nil
	})
	return found
}

// followers are the running nodes but the leader.
func (f *fleet) followers() []*node {
	f.t.Helper()
	leader := f.leader()
	var out []*node
	for _, n := range f.running() {
		if n != leader {
			out = append(out, n)
		}
	}
	return out
}

func (f *fleet) awaitVoters(n int) {
	f.t.Helper()
	f.until(fmt.Sprintf("%d voters everywhere", n), func() bool {
		for _, node := range f.running() {
			if countServers(node.node.servers(), true) != float64(n) || !node.Ready() {
				return false
			}
		}
		return true
	})
}

func (f *fleet) until(what string, cond func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			f.t.Fatalf("still waiting for: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (f *fleet) stopAll() {
	f.heal()
	for _, name := range f.order {
		f.nodes[name].disk.release()
	}
	for _, name := range f.order {
		if f.nodes[name].running {
			f.nodes[name].stop()
		}
	}
}

// newRegistry is a registry that is read through metrics of the running node.
func (n *node) newRegistry() *prometheus.Registry {
	n.registry = prometheus.NewRegistry()
	return n.registry
}

// start starts a node, again with what is in its data directory.
func (n *node) start() {
	n.fleet.t.Helper()
	ln, err := net.Listen("tcp", n.cfg.Listen)
	if err != nil {
		n.fleet.t.Fatal(err)
	}
	c, err := New(n.fleet.t.Context(), n.cfg, Deps{Logger: testLogger(n.fleet.t).With("node", n.name), Version: "test", Registerer: n.newRegistry(),
		hooks: hooks{dial: n.fleet.dialer(n.name), wrapLog: n.disk.wrap, command: &n.command, wait: fleetWait}})
	if err != nil {
		n.fleet.t.Fatal(errors.Join(err, ln.Close()))
	}
	n.Coordinator, n.served, n.running = c, make(chan error, 1), true
	ctx, cancel := context.WithCancel(context.Background())
	n.serveStop = cancel
	go func() { n.served <- c.Serve(ctx, ln) }()
}

// stop ends a node in order.
func (n *node) stop() {
	n.fleet.t.Helper()
	n.serveStop()
	n.end()
}

// end waits for Serve to end and closes the coordinator.
func (n *node) end() {
	n.fleet.t.Helper()
	n.running = false
	if n.ended = <-n.served; n.ended != nil && !errors.Is(n.ended, ErrRemoved) {
		n.fleet.t.Errorf("%s: serve: %v", n.name, n.ended)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		n.fleet.t.Errorf("%s: close: %v", n.name, err)
	}
}

// kill ends a node without giving it the chance to say anything: its network is
// cut first.
func (n *node) kill() {
	n.fleet.t.Helper()
	n.fleet.isolate(n.name)
	n.stop()
	n.fleet.rejoin(n.name)
}

// dialer is how the coordinator of a name reaches others.
func (f *fleet) dialer(from string) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		f.mu.Lock()
		to := f.names[address]
		f.mu.Unlock()
		if f.isCut(from, to) {
			<-time.After(time.Millisecond)
			return nil, fmt.Errorf("dial %s: no way from %s", to, from)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &fleetConn{Conn: conn, fleet: f, from: from, to: to}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conns[c] = true
		return c, nil
	}
}

func (f *fleet) isCut(from, to string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut[from+">"+to]
}

// cutWay drops what one coordinator sends to another, in connections that either
// of them made: a one-way partition.
func (f *fleet) cutWay(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[from+">"+to] = true
}

// isolate cuts a coordinator from all others, both ways.
func (f *fleet) isolate(name string) {
	for _, other := range f.order {
		if other != name {
			f.cutWay(name, other)
			f.cutWay(other, name)
		}
	}
}

func (f *fleet) rejoin(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for way := range f.cut {
		if from, to, _ := strings.Cut(way, ">"); from == name || to == name {
			delete(f.cut, way)
		}
	}
}

func (f *fleet) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cut)
}

// fleetConn is a connection between two coordinators. What is written into a cut
// way breaks the connection; so does what comes out of one.
type fleetConn struct {
	net.Conn
	fleet    *fleet
	from, to string
}

// Write implements net.Conn.
func (c *fleetConn) Write(p []byte) (int, error) {
	if c.fleet.isCut(c.from, c.to) {
		_ = c.Conn.Close()
		return 0, errors.New("the way is cut")
	}
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *fleetConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.fleet.isCut(c.to, c.from) {
		_ = c.Conn.Close()
		return 0, errors.New("the way is cut")
	}
	return n, err
}

// slowDisk is a log store that can be made to hang.
type slowDisk struct {
	mu   sync.Mutex
	gate chan struct{}
}

func newSlowDisk() *slowDisk { return &slowDisk{} }

func (d *slowDisk) wrap(store raft.LogStore) raft.LogStore { return hangingLog{store, d} }

// hang makes writes wait until release.
func (d *slowDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate == nil {
		d.gate = make(chan struct{})
	}
}

func (d *slowDisk) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		close(d.gate)
		d.gate = nil
	}
}

type hangingLog struct {
	raft.LogStore
	disk *slowDisk
}

// StoreLogs implements raft.LogStore.
func (l hangingLog) StoreLogs(entries []*raft.Log) error {
	l.disk.mu.Lock()
	gate := l.disk.gate
	l.disk.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return l.LogStore.StoreLogs(entries)
}

// client speaks to one node, which the tests trust as an agent would.
func (n *node) client(h2 bool) *http.Client {
	n.fleet.t.Helper()
	conf := (&cluster{Coordinator: n.Coordinator, t: n.fleet.t}).trust()
	conf.NextProtos = nil
	transport := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: h2}
	if !h2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	n.fleet.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// at is a caller's clients through one node.
func (n *node) at(token string) api {
	n.fleet.t.Helper()
	return (&cluster{Coordinator: n.Coordinator, t: n.fleet.t, url: n.cfg.Advertise, h2: n.client(true)}).as(token)
}

// clusterAPI is ClusterService through one node, as an admin.
func (n *node) clusterAPI() rpc.ClusterServiceClient {
	n.fleet.t.Helper()
	return rpc.NewClusterServiceClient(bearer{n.client(true), n.fleet.admin}, n.cfg.Advertise)
}

func (f *fleet) joins() rpc.JoinServiceClient {
	f.t.Helper()
	n := f.leader()
	return rpc.NewJoinServiceClient(bearer{n.client(true), f.admin}, n.cfg.Advertise)
}

// token makes a token through any node and gives its secret.
func (n *node) token(role, subject string) (string, error) {
	res, err := n.at(n.fleet.admin).tokens.CreateToken(n.fleet.t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Role: role, Subject: subject}))
	if err != nil {
		return "", err
	}
	return res.Msg.GetSecret(), nil
}

// mustToken repeats what is safe to repeat until there is a token.
func (f *fleet) mustToken(role, subject string) string {
	f.t.Helper()
	var secret string
	f.until("a token", func() bool {
		s, err := f.leader().token(role, subject)
		secret = s
		return err == nil
	})
	return secret
}
