package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Workspace is the runner's record of one workspace. Its head is in the
// content store; the journal has what must hold also when the store fails.
type Workspace struct {
	ID    string
	Agent string
	Epoch uint64
	// State is "ready", "needs_repair", "restoring" or "fenced", Detail why.
	State  string
	Detail string
}

// ErrFenced is returned when the caller's epoch is older than the workspace's.
var ErrFenced = errors.New("journal: stale epoch")

// EnsureWorkspace creates the record or raises its epoch, and gives it as it
// stands. A lower epoch than the stored one is ErrFenced.
func (j *Journal) EnsureWorkspace(ctx context.Context, id, agent string, epoch uint64) (Workspace, error) {
	w := Workspace{ID: id, Agent: agent, Epoch: epoch, State: "ready"}
	err := j.update(ctx, func(tx *sql.Tx) error {
		have, err := scanWorkspace(tx.QueryRow(selectWorkspace+" WHERE id = ?", id))
		switch {
		case errors.Is(err, ErrNotFound):
			_, err = tx.Exec("INSERT INTO workspaces (id, agent, epoch, state) VALUES (?, ?, ?, ?)", id, agent, epoch, w.State)
			return err
		case err != nil:
			return err
		case have.Agent != agent:
			return fmt.Errorf("workspace %s: %w", id, ErrNotFound)
		case have.Epoch < epoch && have.State == skerryv1.WorkspaceFenced:
			return fmt.Errorf("workspace %s is a branch here, of epoch %d: %w", id, have.Epoch, ErrFenced)
		case have.Epoch > epoch:
			return fmt.Errorf("workspace %s has epoch %d, call has %d: %w", id, have.Epoch, epoch, ErrFenced)
		}
		_, err = tx.Exec("UPDATE workspaces SET epoch = ? WHERE id = ?", epoch, id)
		have.Epoch = epoch
		w = have
		return err
	})
	return w, err
}

// SetWorkspaceState records that a workspace needs repair, or no longer does.
func (j *Journal) SetWorkspaceState(ctx context.Context, id, state, detail string) error {
	return j.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec("UPDATE workspaces SET state = ?, detail = ? WHERE id = ?", state, detail, id)
		return err
	})
}

// Workspaces lists all, by id.
func (j *Journal) Workspaces(ctx context.Context) ([]Workspace, error) {
	rows, err := j.read.QueryContext(ctx, selectWorkspace+" ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []Workspace
	for rows.Next() {
		w, err := scanWorkspace(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, rows.Err()
}

const selectWorkspace = "SELECT id, agent, epoch, state, detail FROM workspaces"

type scanner interface{ Scan(dest ...any) error }

func scanWorkspace(row scanner) (Workspace, error) {
	var w Workspace
	err := row.Scan(&w.ID, &w.Agent, &w.Epoch, &w.State, &w.Detail)
	if errors.Is(err, sql.ErrNoRows) {
		return w, ErrNotFound
	}
	return w, err
}
