package coordinator

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/coordinatortest"
	"skerry.internal/proto/ids"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// callers at once in the benchmarks of changes.
const callers = 64

func benchNode(b *testing.B) *Coordinator {
	b.Helper()
	c, err := New(b.Context(), defaultConfigIn(b.TempDir()), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close(b.Context()) })
	return c
}

// defaultConfigIn is the default configuration in dir, on any port.
func defaultConfigIn(dir string) Config {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen = dir, "127.0.0.1:0"
	return cfg
}

func parallel(b *testing.B, change func(n uint64) error) {
	b.Helper()
	var n atomic.Uint64
	b.SetParallelism(callers / 2)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := change(n.Add(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
}

func BenchmarkCreateToken(b *testing.B) {
	c := benchNode(b)
	parallel(b, func(n uint64) error {
		_, _, err := c.CreateToken(b.Context(), &skerryv1.CreateTokenRequest{Subject: fmt.Sprintf("a%d", n)})
		return err
	})
}

// BenchmarkAssignWorkspace is what a first call of an agent costs in the log.
func BenchmarkAssignWorkspace(b *testing.B) {
	c := benchNode(b)
	register := &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{Name: "r1"}}}
	if _, err := c.node.apply(b.Context(), register); err != nil {
		b.Fatal(err)
	}
	// Agents without tokens, so that only assignments are measured.
	const agents = 20000
	for n := range agents {
		cmd := assignCommand("", "")
		cmd.Op = &raftlogv1.Command_CreateToken{CreateToken: &raftlogv1.CreateToken{Token: &raftlogv1.Token{
			Id: fmt.Sprintf("tk_%d", n), Hash: []byte{1}, Role: "agent", Subject: fmt.Sprintf("a%d", n)}}}
		cmd.Id = fmt.Sprintf("cm_%d", n)
		cmd.Time = timestamppb.Now()
		fill(b, c, cmd)
	}
	parallel(b, func(n uint64) error {
		_, err := c.commitWorkspace(b.Context(), fmt.Sprintf("a%d", n%agents), "r1", 1)
		return err
	})
}

func assignCommand(agent, runner string) *raftlogv1.Command {
	now := time.Now()
	return &raftlogv1.Command{Id: ids.New(ids.Command, 0, now).String(), Time: timestamppb.New(now),
		Op: &raftlogv1.Command_AssignWorkspace{AssignWorkspace: &raftlogv1.AssignWorkspace{
			Id: ids.New(ids.Workspace, 1, now).String(), Agent: agent, Runner: runner}}}
}

// fill changes the state beside the log, which only a benchmark may.
func fill(b *testing.B, c *Coordinator, cmd *raftlogv1.Command) {
	b.Helper()
	raw, err := proto.Marshal(cmd)
	if err != nil {
		b.Fatal(err)
	}
	fsm{c.state}.Apply(&raft.Log{Type: raft.LogCommand, Data: raw, Index: 1})
}

// BenchmarkBareRaft is the library alone with the same store, configuration and
// entry size: what BenchmarkAssignWorkspace is held against.
func BenchmarkBareRaft(b *testing.B) {
	dir := b.TempDir()
	store, err := openStore(filepath.Join(dir, raftLogFile))
	if err != nil {
		b.Fatal(err)
	}
	_, transport := raft.NewInmemTransport("bare")
	conf := raftConfig(DefaultConfig().withDefaults())
	conf.Logger = hclog.NewNullLogger()
	snapshots := raft.NewDiscardSnapshotStore()
	voters := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: "bare"}}}
	if err := raft.BootstrapCluster(conf, store, store, snapshots, transport, voters); err != nil {
		b.Fatal(err)
	}
	node, err := raft.NewRaft(conf, bareFSM{}, store, store, snapshots, transport)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = node.Shutdown().Error(); _ = store.Close() })
	for node.State() != raft.Leader {
		time.Sleep(time.Millisecond)
	}
	data := make([]byte, proto.Size(assignCommand("a12345", "r1")))
	parallel(b, func(uint64) error { return node.Apply(data, time.Minute).Error() })
}

type bareFSM struct{}

func (bareFSM) Apply(*raft.Log) any                 { return nil }
func (bareFSM) ApplyBatch(logs []*raft.Log) []any   { return make([]any, len(logs)) }
func (bareFSM) Snapshot() (raft.FSMSnapshot, error) { return fsmSnapshot{}, nil }
func (bareFSM) Restore(r io.ReadCloser) error       { return r.Close() }

// BenchmarkForwardedGet is one read through the coordinator and the link;
// BenchmarkDirectGet is the same call to the runner's handler without either.
func BenchmarkForwardedGet(b *testing.B) {
	k := start(b)
	r := k.runner("r1")
	client := k.as(k.token("agent", "ann")).executions
	if _, err := client.RunShell(b.Context(), shell("true")); err != nil {
		b.Fatal(err)
	}
	benchGet(b, client, r.AddExecution("ann", time.Now()))
}

func BenchmarkDirectGet(b *testing.B) {
	r := coordinatortest.NewRunner("r1")
	server := httptest.NewUnstartedServer(r.Handler(b.Context()))
	server.Config.Protocols = newServer(nil, Limits{}, slog.New(slog.DiscardHandler)).Protocols
	server.Start()
	b.Cleanup(server.Close)
	// The fake keeps executions by agent; without a coordinator the agent is empty.
	client := rpc.NewExecutionServiceClient(plainClient(b, true), server.URL)
	benchGet(b, client, r.AddExecution("", time.Now()))
}

func benchGet(b *testing.B, client rpc.ExecutionServiceClient, id string) {
	b.Helper()
	b.ResetTimer()
	for b.Loop() {
		if _, err := client.GetExecution(b.Context(), get(id)); err != nil {
			b.Fatal(err)
		}
	}
}
