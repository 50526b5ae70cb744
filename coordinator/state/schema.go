package state

import (
	"github.com/hashicorp/go-memdb"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Tables and indexes. The primary index of each is called "id", as memdb wants.
const (
	tableMeta       = "meta"
	tableRunners    = "runners"
	tableAgents     = "agents"
	tableTokens     = "tokens"
	tableWorkspaces = "workspaces"
	tableTransfers  = "transfers"
	tableBranches   = "branches"

	indexID     = "id"
	indexNumber = "number"
	// By agent and runner; an agent's workspaces stand next to each other.
	indexPair   = "pair"
	indexRunner = "runner"
)

// metaRow is the one row of tableMeta.
type metaRow struct {
	Key    string
	Header *raftlogv1.SnapshotHeader
}

const metaKey = "cluster"

func byText[T any](name string, unique bool, parts int, get func(*T) []string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Unique: unique, Indexer: textIndex[T]{parts: parts, get: get}}
}

// some makes an index that has not all records.
func some(index *memdb.IndexSchema) *memdb.IndexSchema {
	index.AllowMissing = true
	return index
}

// byID is the primary index on one text.
func byID[T any](get func(*T) string) *memdb.IndexSchema {
	return byText(indexID, true, 1, func(v *T) []string { return []string{get(v)} })
}

func table(name string, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: make(map[string]*memdb.IndexSchema, len(indexes))}
	for _, index := range indexes {
		t.Indexes[index.Name] = index
	}
	return t
}

// newDB makes empty tables. replicates: workspaces without a policy of their own
// are to be replicated.
func newDB(replicates bool) *memdb.MemDB {
	number := &memdb.IndexSchema{Name: indexNumber, Unique: true, Indexer: numberIndex[raftlogv1.Runner]{(*raftlogv1.Runner).GetNumber}}
	pair := byText(indexPair, true, 2, func(w *raftlogv1.Workspace) []string { return []string{w.GetAgent(), w.GetRunner()} })
	runner := byText(indexRunner, false, 1, func(w *raftlogv1.Workspace) []string { return []string{w.GetRunner()} })
	schema := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{
		tableMeta:       table(tableMeta, byID(func(m *metaRow) string { return m.Key })),
		tableRunners:    table(tableRunners, byID((*raftlogv1.Runner).GetName), number),
		tableAgents:     agentsTable(),
		tableTokens:     tokensTable(),
		tableWorkspaces: table(tableWorkspaces, byID((*raftlogv1.Workspace).GetId), pair, runner, behindIndex(replicates), restoreIndex()),
		tableMembers:    memberTable(),
		tableTimers:     timersTable(),
		tableInboxes:    table(tableInboxes, byID((*raftlogv1.Inbox).GetAgent)),
		tableEntries:    entriesTable(),
		tableTransfers:  transferTable(),
		tableBranches:   branchTable(),
	}}
	for _, t := range authoritySchema() {
		schema.Tables[t.Name] = t
	}
	db, err := memdb.NewMemDB(schema)
	if err != nil {
		// Only a mistake in the lines above can do this.
		panic("state: schema: " + err.Error())
	}
	return db
}
