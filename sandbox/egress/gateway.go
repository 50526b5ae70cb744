package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DefaultMaxConnections of all executions together.
const DefaultMaxConnections = 1024

// Config of a Gateway.
type Config struct {
	// Dir, which sandbox users must be able to pass, has one directory for each
	// execution. The gateway owns what is in it.
	Dir string
	// SocketName is the socket's name in an execution's directory.
	SocketName string
	// Runner is the name that denials tell.
	Runner string
	// Policies by name.
	Policies map[string]*Policy
	// Upstream is the operator's own proxy; nil: servers are reached directly.
	Upstream *Upstream
	// MaxConnections of all executions together; 0: DefaultMaxConnections.
	MaxConnections int
	// Site has what addresses alone don't tell.
	Site Site
	// Resolver; nil: the host's.
	Resolver Resolver

	dial       dialFunc                   // for tests
	interfaces func() ([]net.Addr, error) // for tests; the host's own addresses
}

// Gateway serves the sockets of all executions of a runner. Its methods are safe
// for concurrent use.
type Gateway struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	conns   atomic.Int64

	ctx  context.Context //nolint:containedctx // lifetime of the goroutines below
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session
	closed   bool
}

// New makes a gateway that listens to nothing yet.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Gateway, error) {
	if err := os.MkdirAll(cfg.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("egress gateway: %w", err)
	}
	if err := os.Chmod(cfg.Dir, 0o711); err != nil { // whatever the umask
		return nil, fmt.Errorf("egress gateway: %w", err)
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	if cfg.Resolver == nil {
		cfg.Resolver = newHostResolver()
	}
	if cfg.dial == nil {
		cfg.dial = (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	if cfg.interfaces == nil {
		cfg.interfaces = net.InterfaceAddrs
	}
	policies := make(map[string]*Policy, len(cfg.Policies))
	for name, p := range cfg.Policies {
		p = p.withDefaults()
		p.Name = name
		policies[name] = p
	}
	cfg.Policies = policies
	g := &Gateway{cfg: cfg, log: log, sessions: map[string]*session{}}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.metrics = newMetrics(reg, g)
	return g, nil
}

// Errors of Open and Resume.
var (
	ErrNoPolicy = errors.New("no such network policy")
	ErrClosed   = errors.New("the egress gateway is closed")
)

// Open makes the socket of an execution and gives its directory, which is to be
// bound into the sandbox as a whole. Only members of the group gid can pass it,
// if the daemon is root; else only the daemon's own user.
func (g *Gateway) Open(execution, policy string, gid int) (dir string, err error) {
	p := g.cfg.Policies[policy]
	if p == nil {
		return "", fmt.Errorf("open gateway of %s: %w: %q", execution, ErrNoPolicy, policy)
	}
	s, err := g.open(execution, p, gid)
	if err != nil {
		return "", fmt.Errorf("open gateway of %s: %w", execution, err)
	}
	return s.dir, nil
}

// Resume is Open for an execution that an earlier daemon started: its sandbox
// has the directory, in which the socket is made anew. The policy is today's; if
// it was removed, every request is denied.
func (g *Gateway) Resume(execution, policy string, gid int) error {
	p := g.cfg.Policies[policy]
	if p == nil {
		p = removed(policy)
	}
	if _, err := g.open(execution, p, gid); err != nil {
		return fmt.Errorf("resume gateway of %s: %w", execution, err)
	}
	return nil
}

func (g *Gateway) open(execution string, p *Policy, gid int) (*session, error) {
	if execution == "" || filepath.Base(execution) != execution || execution[0] == '.' {
		return nil, fmt.Errorf("%q is no name of a directory", execution)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	if s := g.sessions[execution]; s != nil {
		return s, nil
	}
	dir := filepath.Join(g.cfg.Dir, execution)
	l, err := listen(dir, g.cfg.SocketName, gid)
	if err != nil {
		return nil, err
	}
	s := newSession(g, execution, p, dir, l)
	g.sessions[execution] = s
	g.wg.Go(s.serve)
	return s, nil
}

// makeDir makes an execution's directory, unless it is there. A user's own
// group may have other members: it is closed to them.
func makeDir(dir string, gid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if os.Geteuid() != 0 {
		return os.Chmod(dir, 0o700)
	}
	if err := os.Chown(dir, 0, gid); err != nil {
		return err
	}
	return os.Chmod(dir, 0o710)
}

// listen makes a new socket in the execution's directory.
func listen(dir, name string, gid int) (*net.UnixListener, error) {
	if err := makeDir(dir, gid); err != nil {
		return nil, err
	}
	// By way of the descriptor: a socket's path may have no more than 107 bytes.
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name is gone by then
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Release ends an execution's network and removes its directory. No process of
// the execution may be alive. It does nothing for one that has no socket.
func (g *Gateway) Release(execution string) {
	g.mu.Lock()
	s := g.sessions[execution]
	delete(g.sessions, execution)
	g.mu.Unlock()
	if s == nil {
		return
	}
	s.close()
	if err := os.RemoveAll(s.dir); err != nil {
		g.log.Warn("egress directory not removed", "execution", execution, "err", err)
	}
}

// Sweep removes the directories of executions that ended while no gateway ran:
// those for which neither Open nor Resume was called.
func (g *Gateway) Sweep() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	entries, err := os.ReadDir(g.cfg.Dir)
	if err != nil {
		return fmt.Errorf("sweep egress directories: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if g.sessions[e.Name()] == nil {
			errs = append(errs, os.RemoveAll(filepath.Join(g.cfg.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Close ends all connections and waits for what serves them. Directories stay,
// so that Resume of a later gateway reaches the sandboxes that go on.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	for _, s := range g.sessions {
		s.close()
	}
	clear(g.sessions)
	g.mu.Unlock()
	g.stop()
	g.wg.Wait()
}

// open sessions, for the metrics.
func (g *Gateway) openSessions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}
