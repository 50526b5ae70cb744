package coordinator

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	pki "skerry.internal/proto/identity"
)

// Whoever opens connections to the Raft port and says nothing must not keep
// members waiting: they need new connections when a leader is lost.
func TestSilentConnectionsDontHoldUpMembers(t *testing.T) {
	f := startFleet(t, 3)
	to, from := f.followers()[0], f.followers()[1]
	stranger := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 10 * time.Second}
	for range maxHandshakes + 100 {
		conn, err := stranger.DialContext(t.Context(), "tcp", to.cfg.Cluster.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	raw, err := net.Dial("tcp", to.cfg.Cluster.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if err := raw.SetDeadline(time.Now().Add(raftHandshake / 2)); err != nil {
		t.Fatal(err)
	}
	if err := tls.Client(raw, from.identity.ClientTLS(pki.RoleCoordinator)).HandshakeContext(t.Context()); err != nil {
		t.Errorf("a member shakes hands: %v", err)
	}
}
