package state

import (
	"fmt"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

const tableMembers = "members"

// MaxMembers bounds the coordinators whose records are kept, removed ones
// included.
const MaxMembers = 128

func memberTable() *memdb.TableSchema {
	return table(tableMembers, byID((*raftlogv1.Member).GetName))
}

// Member finds a coordinator by name, removed ones included.
func (r Reader) Member(name string) *raftlogv1.Member {
	v, _ := first[raftlogv1.Member](r.txn, tableMembers, indexID, name)
	return v
}

// Members lists the coordinators that announced themselves by name, without
// removed ones.
func (r Reader) Members() []*raftlogv1.Member {
	var out []*raftlogv1.Member
	for _, m := range all[raftlogv1.Member](r.txn, tableMembers, indexID) {
		if m.GetRemoved() == nil {
			out = append(out, m)
		}
	}
	return out
}

// putMember stores what a coordinator told of itself. One that was removed
// stays so; only one that joined anew takes its name.
func (p processor) putMember(cmd *raftlogv1.Command, told *raftlogv1.Member) *raftlogv1.Answer {
	if told.GetName() == "" || told.GetAddress() == "" {
		return refuse(problem.InvalidArgument, "name", "name or address is empty")
	}
	old := p.Member(told.GetName())
	switch {
	case old == nil && len(all[raftlogv1.Member](p.txn, tableMembers, indexID)) >= MaxMembers:
		return refuse(problem.LimitExceeded, "name", "there are records of %d coordinators", MaxMembers)
	case old.GetRemoved() != nil && old.GetIncarnation() == told.GetIncarnation():
		return refuse(problem.MemberRemoved, "name", "coordinator %q was removed from the cluster", told.GetName())
	}
	for _, other := range p.Members() {
		if other.GetName() != told.GetName() && other.GetAddress() == told.GetAddress() {
			return refuse(problem.AlreadyExists, "address", "coordinator %q has the address %s", other.GetName(), told.GetAddress())
		}
	}
	member := proto.CloneOf(told)
	member.Changed, member.Removed = cmd.GetTime(), nil
	p.put(tableMembers, member)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Member{Member: member}}
}

func (p processor) removeMember(cmd *raftlogv1.Command, op *raftlogv1.RemoveMember) *raftlogv1.Answer {
	member := p.Member(op.GetName())
	if member == nil {
		return refuse(problem.NotFound, "name", "no coordinator %q", op.GetName())
	}
	if member.GetRemoved() == nil {
		member = proto.CloneOf(member)
		member.Removed = cmd.GetTime()
		p.put(tableMembers, member)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Member{Member: member}}
}

func writeMembers(txn *memdb.Txn, out *recordWriter) {
	each(txn, tableMembers, indexID, func(v *raftlogv1.Member) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Member{Member: v}})
	})
}

func loadMember(txn *memdb.Txn, member *raftlogv1.Member) error {
	if member.GetName() == "" {
		return fmt.Errorf("a coordinator without a name")
	}
	return insertNew(txn, tableMembers, member, member.GetName())
}
