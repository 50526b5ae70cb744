package coordinator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"connectrpc.com/connect"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// BenchmarkFleetAssign is assignments on three coordinators, in this process but
// by TLS and with a store each; BenchmarkBareRaft3 is what it is held against.
func BenchmarkFleetAssign(b *testing.B) {
	f := startFleetWith(b, 3, func(cfg *Config) { cfg.Raft = DefaultConfig().Raft })
	leader := f.leader()
	if _, err := leader.node.apply(b.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{Name: "r1"}}}); err != nil {
		b.Fatal(err)
	}
	for n := range 1000 {
		if _, _, err := leader.CreateToken(b.Context(), &skerryv1.CreateTokenRequest{Subject: fmt.Sprintf("a%d", n)}); err != nil {
			b.Fatal(err)
		}
	}
	parallel(b, func(n uint64) error {
		_, err := leader.node.apply(b.Context(), assignCommand(fmt.Sprintf("a%d", n%1000), "r1"))
		return err
	})
}

// BenchmarkFleetRead is one read that the leader answers itself, its leadership
// confirmed by the voters.
func BenchmarkFleetRead(b *testing.B) {
	f := startFleetWith(b, 3, func(cfg *Config) { cfg.Raft = DefaultConfig().Raft })
	leader := f.leader()
	ann := leader.at(f.mustToken("agent", "ann")).workspaces
	parallel(b, func(uint64) error {
		_, err := ann.ListWorkspaces(b.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
		return err
	})
}

// bareStream is TLS of both ends, with one certificate for all.
type bareStream struct {
	net.Listener
	config *tls.Config
}

// Dial implements raft.StreamLayer.
func (s bareStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, "tcp", string(address), s.config)
}

func newBareStream(b *testing.B) bareStream {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		b.Fatal(err)
	}
	return bareStream{ln, config}
}

// BenchmarkBareRaft3 is the library alone with three nodes by TLS on loopback and
// the same stores.
func BenchmarkBareRaft3(b *testing.B) {
	var servers []raft.Server
	var nodes []*raft.Raft
	var transports []*raft.NetworkTransport
	for _, name := range []string{"a", "b", "c"} {
		transport := raft.NewNetworkTransportWithLogger(newBareStream(b), raftConns, raftIOTimeout, hclog.NewNullLogger())
		transports = append(transports, transport)
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: transport.LocalAddr()})
	}
	for i, s := range servers {
		store, err := openStore(filepath.Join(b.TempDir(), raftLogFile))
		if err != nil {
			b.Fatal(err)
		}
		cfg := DefaultConfig()
		cfg.Cluster.Listen = "x"
		conf := raftConfig(cfg.withDefaults())
		conf.Logger, conf.LocalID = hclog.NewNullLogger(), s.ID
		snapshots := raft.NewDiscardSnapshotStore()
		if err := raft.BootstrapCluster(conf, store, store, snapshots, transports[i], raft.Configuration{Servers: servers}); err != nil {
			b.Fatal(err)
		}
		node, err := raft.NewRaft(conf, bareFSM{}, store, store, snapshots, transports[i])
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, node)
		b.Cleanup(func() {
			_ = node.Shutdown().Error()
			transports[i].CloseStreams() // Close alone leaves them open
			_ = errors.Join(transports[i].Close(), store.Close())
		})
	}
	var leader *raft.Raft
	for leader == nil {
		time.Sleep(time.Millisecond)
		for _, n := range nodes {
			if n.State() == raft.Leader {
				leader = n
			}
		}
	}
	data := make([]byte, proto.Size(assignCommand("a12345", "r1")))
	parallel(b, func(uint64) error { return leader.Apply(data, time.Minute).Error() })
}

// BenchmarkFailOver is the time from cutting the leader off to the next
// acknowledged write, with the default time-outs of a cluster.
func BenchmarkFailOver(b *testing.B) {
	f := startFleetWith(b, 3, func(cfg *Config) { cfg.Raft = DefaultConfig().Raft })
	var longest, sum time.Duration
	for b.Loop() {
		old := f.leader()
		began := time.Now()
		f.isolate(old.name)
		f.until("another leads", func() bool { return f.leader() != old })
		f.mustToken("agent", "ann")
		took := time.Since(began)
		longest, sum = max(longest, took), sum+took
		f.heal()
		f.until("the old leader follows", func() bool { return !old.leads() && old.Ready() })
	}
	b.ReportMetric(sum.Seconds()/float64(b.N), "s/fail-over")
	b.ReportMetric(longest.Seconds(), "s-longest")
}
