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
	tableApplied    = "applied"

	indexID     = "id"
	indexNumber = "number"
	indexPair   = "pair"
	indexAgent  = "agent"
	indexRunner = "runner"
	indexLog    = "log"
)

// metaRow is the one row of tableMeta.
type metaRow struct {
	Key    string
	Header *raftlogv1.SnapshotHeader
}

const metaKey = "cluster"

func unique(name, field string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Unique: true, Indexer: &memdb.StringFieldIndex{Field: field}}
}

func numbered(name, field string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Unique: true, Indexer: &memdb.UintFieldIndex{Field: field}}
}

func many(name, field string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Indexer: &memdb.StringFieldIndex{Field: field}}
}

func table(name string, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: make(map[string]*memdb.IndexSchema, len(indexes))}
	for _, index := range indexes {
		t.Indexes[index.Name] = index
	}
	return t
}

func newDB() *memdb.MemDB {
	pair := &memdb.IndexSchema{Name: indexPair, Unique: true, Indexer: &memdb.CompoundIndex{
		Indexes: []memdb.Indexer{&memdb.StringFieldIndex{Field: "Agent"}, &memdb.StringFieldIndex{Field: "Runner"}},
	}}
	schema := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{
		tableMeta:       table(tableMeta, unique(indexID, "Key")),
		tableRunners:    table(tableRunners, unique(indexID, "Name"), numbered(indexNumber, "Number")),
		tableAgents:     table(tableAgents, unique(indexID, "Name")),
		tableTokens:     table(tableTokens, unique(indexID, "Id")),
		tableWorkspaces: table(tableWorkspaces, unique(indexID, "Id"), pair, many(indexAgent, "Agent"), many(indexRunner, "Runner")),
		tableApplied:    table(tableApplied, unique(indexID, "Id"), numbered(indexLog, "Index")),
	}}
	db, err := memdb.NewMemDB(schema)
	if err != nil {
		// Only a mistake in the lines above can do this.
		panic("state: schema: " + err.Error())
	}
	return db
}
