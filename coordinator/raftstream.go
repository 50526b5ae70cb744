package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	pki "skerry.internal/proto/identity"
)

const (
	raftHandshake = 5 * time.Second
	// Handshakes at once; others wait in the kernel's queue.
	maxHandshakes = 512
	// Of these, from one address: more are closed at once, so that a stranger who
	// opens connections and says nothing doesn't keep other members waiting.
	maxHandshakesFrom = 32
)

// dialFunc opens a connection, as net.Dialer.DialContext does.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// raftStream carries Raft between coordinators: TLS that both ends prove
// themselves by. It implements raft.StreamLayer.
type raftStream struct {
	net.Listener
	logger *slog.Logger
	dial   dialFunc
	client *tls.Config
	// admit refuses peers that have a good certificate but may not come in.
	admit func(pki.Peer) error

	// greeting counts handshakes by address.
	greeting shareSet
	conns    chan *tls.Conn
	stop     context.CancelFunc
	work     sync.WaitGroup

	mu sync.Mutex
	// Connections of both ways, which Raft's transport leaves open when it ends.
	open map[*raftConn]bool
}

// raftConn is one connection, known to its stream until it is closed.
type raftConn struct {
	net.Conn
	stream *raftStream
	peer   pki.Peer
}

// Close implements net.Conn.
func (c *raftConn) Close() error {
	c.stream.mu.Lock()
	delete(c.stream.open, c)
	c.stream.mu.Unlock()
	return c.Conn.Close()
}

// cut ends the connections with those who may not come in any more.
func (s *raftStream) cut() {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, conn := range open {
		if err := s.admit(conn.peer); err != nil {
			s.logger.Warn("raft connection ended", "peer", conn.peer.Name, "error", err)
			_ = conn.Close()
		}
	}
}

// keep has conn closed with the stream.
func (s *raftStream) keep(conn *tls.Conn) net.Conn {
	state := conn.ConnectionState()
	peer, _ := pki.PeerOf(&state) // the handshake found it good
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := &raftConn{conn, s, peer}
	s.open[kept] = true
	return kept
}

var _ raft.StreamLayer = (*raftStream)(nil)

// newRaftStream takes connections from ln until Close. It owns ln.
func newRaftStream(ln net.Listener, id *pki.Identity, dial dialFunc, admit func(pki.Peer) error, logger *slog.Logger) *raftStream {
	ctx, stop := context.WithCancel(context.Background())
	s := &raftStream{Listener: ln, logger: logger, dial: dial, admit: admit, stop: stop,
		client: id.ClientTLS(pki.RoleCoordinator), conns: make(chan *tls.Conn), open: make(map[*raftConn]bool)}
	server := id.ServerMutualTLS(pki.RoleCoordinator)
	s.work.Go(func() { s.listen(ctx, server) })
	return s
}

// listen shakes hands beside each other, so that one silent client keeps nobody
// else waiting.
func (s *raftStream) listen(ctx context.Context, server *tls.Config) {
	slots := make(chan struct{}, maxHandshakes)
	for ctx.Err() == nil {
		conn, err := s.Listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				s.logger.WarnContext(ctx, "accept raft connection", "error", err)
				pause(ctx, 100*time.Millisecond)
			}
			continue
		}
		from := hostOf(conn)
		if !s.greeting.take(from, maxHandshakesFrom) {
			_ = conn.Close()
			continue
		}
		slots <- struct{}{}
		s.work.Go(func() {
			defer func() { <-slots; s.greeting.give(from) }()
			s.greet(ctx, tls.Server(conn, server))
		})
	}
}

// hostOf is the address that a connection comes from, without its port.
func hostOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

func (s *raftStream) greet(ctx context.Context, conn *tls.Conn) {
	if err := s.handshake(ctx, conn); err != nil {
		_ = conn.Close()
		s.logger.DebugContext(ctx, "raft connection refused", "peer", conn.RemoteAddr().String(), "error", err)
		return
	}
	select {
	case s.conns <- conn:
	case <-ctx.Done():
		_ = conn.Close()
	}
}

func (s *raftStream) handshake(ctx context.Context, conn *tls.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, raftHandshake)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	state := conn.ConnectionState()
	peer, ok := pki.PeerOf(&state)
	if !ok {
		return pki.ErrNotOurs
	}
	return s.admit(peer)
}

// Accept implements net.Listener.
func (s *raftStream) Accept() (net.Conn, error) {
	conn, ok := <-s.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return s.keep(conn), nil
}

// Dial implements raft.StreamLayer.
func (s *raftStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	raw, err := s.dial(ctx, "tcp", string(address))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, s.client)
	if err := s.handshake(ctx, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("raft connection to %s: %w", address, err), conn.Close())
	}
	return s.keep(conn), nil
}

// Close implements net.Listener. It ends all connections too.
func (s *raftStream) Close() error {
	s.stop()
	err := s.Listener.Close()
	s.work.Wait()
	close(s.conns)
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
	return err
}
