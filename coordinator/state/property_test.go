package state

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

func drawCommand(t *rapid.T, n int) *raftlogv1.Command {
	name := rapid.SampledFrom([]string{"", "r1", "r2", "r3"})
	agent := rapid.SampledFrom([]string{"", "ann", "bob"})
	id := func(prefix string) string { return fmt.Sprintf("%s_%d", prefix, rapid.IntRange(0, 4).Draw(t, prefix)) }
	cmd := &raftlogv1.Command{
		// Few ids, so that repeats happen.
		Id:   fmt.Sprintf("cm_%d", rapid.IntRange(0, 2*n+2).Draw(t, "command")),
		Time: &timestamppb.Timestamp{Seconds: int64(n)},
	}
	switch rapid.IntRange(0, 21).Draw(t, "op") {
	case 0:
		cmd.Op = &raftlogv1.Command_InitCluster{InitCluster: &raftlogv1.InitCluster{ClusterId: id("cl")}}
	case 1:
		cmd.Op = register(name.Draw(t, "name")).Op
		cmd.GetRegisterRunner().Slots = rapid.Uint32Range(0, 3).Draw(t, "slots")
		cmd.GetRegisterRunner().Labels = rapid.MapOfN(name, name, 0, 3).Draw(t, "labels")
	case 2:
		state := rapid.SampledFrom([]string{"up", "down", "odd"}).Draw(t, "state")
		cmd.Op = &raftlogv1.Command_SetRunnerState{SetRunnerState: &raftlogv1.SetRunnerState{Name: name.Draw(t, "name"), State: state}}
	case 3:
		role := rapid.SampledFrom([]string{"agent", "admin", "runner"}).Draw(t, "role")
		cmd.Op = create(id("tk"), role, agent.Draw(t, "agent"), rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "project")).Op
	case 4:
		cmd.Op = &raftlogv1.Command_RevokeToken{RevokeToken: &raftlogv1.RevokeToken{Id: id("tk")}}
	case 5:
		cmd.Op = assign(id("ws"), agent.Draw(t, "agent"), name.Draw(t, "name")).Op
	case 6:
		cmd.Op = heads(name.Draw(t, "name"), &raftlogv1.Head{WorkspaceId: id("ws"), Epoch: rapid.Uint64Range(0, 2).Draw(t, "epoch"),
			Seq: rapid.Uint64Range(0, 5).Draw(t, "seq"), Digest: id("d")}).Op
	case 14, 15, 16, 17, 18, 19, 20, 21:
		drawMove(t, cmd)
	default:
		drawService(t, cmd)
	}
	return cmd
}

// Any sequence of commands gives the same state and answers on a node that
// applies them one by one and on one that applies them in batches and is
// restored from its own snapshot at arbitrary points.
func TestPropertySnapshotsAndBatchesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		straight, restored := New(), New()
		var index uint64
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			var batch []Entry
			for range rapid.IntRange(1, 4).Draw(t, "batch") {
				// Gaps are entries that are no commands.
				index += rapid.Uint64Range(1, 2).Draw(t, "gap")
				batch = append(batch, Entry{Index: index, Command: drawCommand(t, step)})
			}
			got := restored.Apply(batch)
			for i, entry := range batch {
				want := straight.Apply([]Entry{entry})[0]
				if !proto.Equal(want, got[i]) {
					t.Fatalf("answers differ: %v and %v", want, got[i])
				}
			}
			if rapid.Bool().Draw(t, "restore") {
				fresh := New()
				if err := fresh.Restore(bytes.NewReader(bytesOf(t, restored))); err != nil {
					t.Fatal(err)
				}
				restored = fresh
			}
			if !bytes.Equal(bytesOf(t, straight), bytesOf(t, restored)) {
				t.Fatal("states differ")
			}
			checkInvariants(t, straight)
		}
	})
}

// A repeat of any remembered command changes nothing and answers the same.
func TestPropertyRepeatsAreIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		var done []*raftlogv1.Command
		answers := map[string]*raftlogv1.Answer{}
		for n := range rapid.IntRange(1, 30).Draw(t, "steps") {
			cmd := drawCommand(t, n)
			answer := s.Apply([]Entry{{Index: uint64(n + 1), Command: cmd}})[0]
			if first, repeated := answers[cmd.GetId()]; repeated && !proto.Equal(first, answer) {
				t.Fatalf("%s answered %v, then %v", cmd.GetId(), first, answer)
			}
			answers[cmd.GetId()] = answer
			done = append(done, cmd)
		}
		before := bytesOf(t, s)
		for i, cmd := range done {
			answer := s.Apply([]Entry{{Index: uint64(1000 + i), Command: cmd}})[0]
			if !proto.Equal(answers[cmd.GetId()], answer) {
				t.Fatalf("repeat of %s answered %v", cmd.GetId(), answer)
			}
		}
		if !bytes.Equal(before, bytesOf(t, s)) {
			t.Fatal("repeats changed the state")
		}
	})
}

func checkInvariants(t *rapid.T, s *State) {
	r := s.Read()
	checkServices(t, r)
	checkMoves(t, r)
	numbers := map[uint32]string{}
	for _, runner := range r.Runners() {
		if other, used := numbers[runner.GetNumber()]; used || runner.GetNumber() == 0 {
			t.Fatalf("runners %s and %s share number %d", other, runner.GetName(), runner.GetNumber())
		}
		numbers[runner.GetNumber()] = runner.GetName()
		for _, ws := range r.WorkspacesOfRunner(runner.GetName()) {
			if r.WorkspaceOf(ws.GetAgent(), ws.GetRunner()) != ws || r.Agent(ws.GetAgent()) == nil {
				t.Fatalf("workspace %v is not its pair's, or has no agent", ws)
			}
		}
	}
}
