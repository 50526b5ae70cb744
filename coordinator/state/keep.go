package state

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// KeepCluster makes s, which was read from a saved snapshot, fit for the cluster
// whose present state is from: what the cluster is, its name, coordinators,
// authority, certificates and version of commands, is taken from there, so that
// its members still know each other; and no runner's number is given again.
func (s *State) KeepCluster(from Reader) error {
	txn := s.db.Load().Txn(true)
	defer txn.Abort()
	p := processor{Reader: Reader{txn: txn}, memory: s.memory}
	header, present := p.cluster(), from.Cluster()
	header.ClusterId = present.GetClusterId()
	header.CommandVersion = present.GetCommandVersion()
	header.NextRunnerNumber = max(header.GetNextRunnerNumber(), present.GetNextRunnerNumber())
	p.putCluster(proto.CloneOf(header))
	for _, table := range []string{tableMembers, tableAuthority, tableHolders, tableJoinTokens} {
		if _, err := txn.DeleteAll(table, indexID); err != nil {
			return fmt.Errorf("drop %s of the snapshot: %w", table, err)
		}
		it, err := from.txn.Get(table, indexID)
		if err != nil {
			return fmt.Errorf("read %s: %w", table, err)
		}
		for record := it.Next(); record != nil; record = it.Next() {
			p.put(table, record)
		}
	}
	txn.Commit()
	return nil
}
