package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Meta reads a setting; "" when it was never set.
func (j *Journal) Meta(ctx context.Context, key string) (string, error) {
	var value string
	err := j.read.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

// SetMeta stores settings in one step.
func (j *Journal) SetMeta(ctx context.Context, values map[string]string) error {
	return j.update(ctx, func(tx *sql.Tx) error {
		for key, value := range values {
			_, err := tx.Exec("INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// ErrNoUID is returned when the uid range has no free uid for a new agent.
var ErrNoUID = errors.New("journal: no free uid for a new agent")

// AgentUID gives the agent's uid, taking the lowest free one of
// [first, first+count) when the agent is new. An agent keeps its uid for ever.
func (j *Journal) AgentUID(ctx context.Context, agent string, first, count uint32) (uint32, error) {
	var uid uint32
	err := j.read.QueryRowContext(ctx, "SELECT uid FROM agents WHERE name = ?", agent).Scan(&uid)
	if err == nil || !errors.Is(err, sql.ErrNoRows) {
		return uid, err
	}
	err = j.update(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRow("SELECT uid FROM agents WHERE name = ?", agent).Scan(&uid)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if uid, err = freeUID(tx, first, count); err != nil {
			return err
		}
		_, err = tx.Exec("INSERT INTO agents (name, uid) VALUES (?, ?)", agent, uid)
		return err
	})
	return uid, err
}

func freeUID(tx *sql.Tx, first, count uint32) (uint32, error) {
	var taken uint32
	err := tx.QueryRow("SELECT count(*) FROM agents WHERE uid >= ? AND uid < ?", first, uint64(first)+uint64(count)).Scan(&taken)
	if err != nil {
		return 0, err
	}
	if taken >= count {
		return 0, fmt.Errorf("%w: all %d uids from %d are taken; widen agent_uids", ErrNoUID, count, first)
	}
	var uid uint32
	err = tx.QueryRow(`SELECT min(candidate) FROM (
		SELECT ? AS candidate UNION ALL SELECT uid + 1 FROM agents WHERE uid >= ?
	) WHERE candidate NOT IN (SELECT uid FROM agents)`, first, first).Scan(&uid)
	return uid, err
}
