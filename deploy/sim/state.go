package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// world is the state that is written as a snapshot: agents whose workspaces are
// spread over the runners, each with a head, and some agents without any.
type world struct {
	runners, agents, fresh int
	// Ids by runner, and whose each is.
	workspaces [][]string
}

const (
	perAgent = 100 // workspaces, at most
	fresh    = 20_000
)

func newWorld(p plan) *world {
	w := &world{runners: p.Runners, agents: (p.Workspaces + perAgent - 1) / perAgent, fresh: fresh, workspaces: make([][]string, p.Runners)}
	now := time.Now()
	for n := range p.Workspaces {
		r := w.runnerOf(n)
		w.workspaces[r] = append(w.workspaces[r], ids.New(ids.Workspace, uint32(r+1), now).String())
	}
	return w
}

// runnerOf spreads an agent's workspaces over different runners.
func (w *world) runnerOf(n int) int { return (n/w.agents*7919 + n%w.agents) % w.runners }

func runnerName(n int) string { return fmt.Sprintf("runner-%05d", n) }
func agentName(n int) string  { return fmt.Sprintf("agent-%05d", n) }
func freshName(n int) string  { return fmt.Sprintf("fresh-%05d", n) }

// secretOf makes up the token of a name, so that its hash can be in the state.
func secretOf(id, name string) (secret string, hash []byte) {
	sum := sha256.Sum256([]byte("simulated " + name))
	part := hex.EncodeToString(sum[:])
	stored := sha256.Sum256([]byte(part))
	return "sk_" + strings.TrimPrefix(id, "tk_") + "_" + part, stored[:]
}

func digestOf(kind string, n int, seq uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", kind, n, seq))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// writer writes records and keeps the first error.
type writer struct {
	w   *bufio.Writer
	err error
}

func (w *writer) put(record *raftlogv1.SnapshotRecord) {
	if w.err == nil {
		_, w.err = protodelim.MarshalTo(w.w, record)
	}
}

// write writes the snapshot and gives the token of each runner and fresh agent.
// The admin's token stays good.
func (w *world) write(out io.Writer, admin string) (tokens map[string]string, err error) {
	to := &writer{w: bufio.NewWriterSize(out, 1<<20)}
	now := timestamppb.Now()
	to.put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Header{Header: &raftlogv1.SnapshotHeader{
		Version: 2, ClusterId: "cl_simulated", NextRunnerNumber: uint32(w.runners + 1), CommandVersion: 2}}})
	tokens = make(map[string]string)
	token := func(name, role string) {
		id := ids.New(ids.Token, 0, time.Now()).String()
		secret, hash := secretOf(id, name)
		tokens[name] = secret
		to.put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Token{Token: &raftlogv1.Token{
			Id: id, Hash: hash, Role: role, Subject: name, Project: "default", Created: now}}})
	}
	to.put(adminToken(admin))
	for n := range w.runners {
		to.put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Runner{Runner: &raftlogv1.Runner{Name: runnerName(n), Number: uint32(n + 1),
			State: skerryv1.RunnerDown, Version: "sim", Tier: "bubblewrap", Slots: 8, Labels: labels(n), Changed: now}}})
		token(runnerName(n), skerryv1.RoleRunner)
	}
	for _, name := range w.agentNames() {
		to.put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Agent{Agent: &raftlogv1.Agent{Name: name, Project: "default", Created: now}}})
		token(name, skerryv1.RoleAgent)
	}
	w.writeWorkspaces(to, now)
	if to.err == nil {
		to.err = to.w.Flush()
	}
	return tokens, to.err
}

func (w *world) agentNames() []string {
	names := []string{"admin"}
	for n := range w.agents {
		names = append(names, agentName(n))
	}
	for n := range w.fresh {
		names = append(names, freshName(n))
	}
	return names
}

func (w *world) writeWorkspaces(to *writer, now *timestamppb.Timestamp) {
	next := make([]int, w.runners)
	for n, total := 0, w.total(); n < total; n++ {
		r := w.runnerOf(n)
		id := w.workspaces[r][next[r]]
		next[r]++
		to.put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Workspace{Workspace: &raftlogv1.Workspace{
			Id: id, Agent: agentName(n % w.agents), Runner: runnerName(r), Epoch: 1, Created: now,
			Head: &raftlogv1.Head{WorkspaceId: id, Epoch: 1, Seq: 1, Digest: digestOf("tree", n, 1), Commit: digestOf("commit", n, 1), State: skerryv1.WorkspaceReady}}}})
	}
}

func (w *world) total() (n int) {
	for _, list := range w.workspaces {
		n += len(list)
	}
	return n
}

func labels(n int) map[string]string {
	return map[string]string{"zone": fmt.Sprintf("zone-%d", n%8), "rack": fmt.Sprintf("rack-%d", n%200)}
}

// adminToken is the record of the token that the coordinator made.
func adminToken(secret string) *raftlogv1.SnapshotRecord {
	id, part, _ := strings.Cut(strings.TrimPrefix(secret, "sk_"), "_")
	hash := sha256.Sum256([]byte(part))
	return &raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Token{Token: &raftlogv1.Token{
		Id: "tk_" + id, Hash: hash[:], Role: skerryv1.RoleAdmin, Subject: "admin", Project: "default", Created: timestamppb.Now()}}}
}

// writeFile writes the snapshot to a new file and gives its checksum.
func (w *world) writeFile(path, admin string) (tokens map[string]string, size int64, sum []byte, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, 0, nil, err
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	if tokens, err = w.write(io.MultiWriter(f, hash), admin); err != nil {
		return nil, 0, nil, err
	}
	size, err = f.Seek(0, io.SeekCurrent)
	return tokens, size, hash.Sum(nil), err
}
