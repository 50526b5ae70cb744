package journal

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// ErrKeyReused is returned when an idempotency key comes with another request.
var ErrKeyReused = errors.New("journal: idempotency key used for another request")

// Accepted is a new execution to record.
type Accepted struct {
	Record *skerryv1.Execution
	// KeyHash is the hash of the request, compared when the key comes again.
	KeyHash []byte
	// Launch is what is needed to start it after a restart; dropped at its end.
	Launch []byte
}

// Accept records a new execution durably. When its idempotency key is known
// already, nothing is recorded and the first execution's id is returned.
func (j *Journal) Accept(ctx context.Context, a Accepted) (first string, err error) {
	record, err := proto.Marshal(a.Record)
	if err != nil {
		return "", err
	}
	err = j.update(ctx, func(tx *sql.Tx) error {
		var key any
		if a.Record.IdempotencyKey != "" {
			key = a.Record.IdempotencyKey
			first, err = findKey(tx.QueryRow, a.Record.Agent, a.Record.IdempotencyKey, a.KeyHash)
			if err == nil || !errors.Is(err, ErrNotFound) {
				return err
			}
			first = ""
		}
		_, err := tx.Exec(`INSERT INTO executions (id, agent, workspace, idem_key, idem_hash, state, record, launch)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, a.Record.Id, a.Record.Agent, a.Record.Workspace, key, a.KeyHash, a.Record.State, record, a.Launch)
		return err
	})
	return first, err
}

// FindKey gives the id of the execution that used this idempotency key.
func (j *Journal) FindKey(ctx context.Context, agent, key string, hash []byte) (string, error) {
	return findKey(func(q string, args ...any) *sql.Row { return j.read.QueryRowContext(ctx, q, args...) }, agent, key, hash)
}

func findKey(query func(string, ...any) *sql.Row, agent, key string, hash []byte) (string, error) {
	var id string
	var have []byte
	err := query("SELECT id, idem_hash FROM executions WHERE agent = ? AND idem_key = ?", agent, key).Scan(&id, &have)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", ErrNotFound
	case err != nil:
		return "", err
	case !bytes.Equal(have, hash):
		return "", fmt.Errorf("%w: first used by %s", ErrKeyReused, id)
	}
	return id, nil
}

// Save overwrites the record of an execution that has not ended.
func (j *Journal) Save(ctx context.Context, e *skerryv1.Execution) error {
	return j.put(ctx, e, "UPDATE executions SET state = ?, record = ? WHERE id = ?")
}

// Finish records the end of an execution under the next number and forgets how
// to launch it.
func (j *Journal) Finish(ctx context.Context, e *skerryv1.Execution) error {
	err := j.put(ctx, e, `UPDATE executions SET state = ?, record = ?, launch = NULL,
		end_seq = (SELECT coalesce(max(end_seq), 0) + 1 FROM executions WHERE end_seq IS NOT NULL) WHERE id = ?`)
	if err == nil {
		j.notifyEnded()
	}
	return err
}

func (j *Journal) put(ctx context.Context, e *skerryv1.Execution, statement string) error {
	record, err := proto.Marshal(e)
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		result, err := tx.Exec(statement, e.State, record, e.Id)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return fmt.Errorf("execution %s: %w", e.Id, errors.Join(err, ErrNotFound))
		}
		return nil
	})
}

// Execution reads one record.
func (j *Journal) Execution(ctx context.Context, id string) (*skerryv1.Execution, error) {
	return scanExecution(j.read.QueryRowContext(ctx, "SELECT record FROM executions WHERE id = ?", id))
}

// List gives the agent's executions, newest first. before limits to older ids;
// state "" means all.
func (j *Journal) List(ctx context.Context, agent, state, before string, limit int) ([]*skerryv1.Execution, error) {
	rows, err := j.read.QueryContext(ctx, `SELECT record FROM executions
		WHERE agent = ?1 AND (?2 = '' OR state = ?2) AND (?3 = '' OR id < ?3) ORDER BY id DESC LIMIT ?4`, agent, state, before, limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []*skerryv1.Execution
	for rows.Next() {
		e, err := scanExecution(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// Unfinished is an execution that had not ended when the runner stopped.
type Unfinished struct {
	Record *skerryv1.Execution
	Launch []byte
}

// Unfinished lists what had not ended, oldest first.
func (j *Journal) Unfinished(ctx context.Context) ([]Unfinished, error) {
	rows, err := j.read.QueryContext(ctx, "SELECT record, launch FROM executions WHERE state IN ('queued', 'running') ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []Unfinished
	for rows.Next() {
		var record []byte
		o := Unfinished{Record: &skerryv1.Execution{}}
		if err := rows.Scan(&record, &o.Launch); err != nil {
			return nil, err
		}
		if err := proto.Unmarshal(record, o.Record); err != nil {
			return nil, fmt.Errorf("read execution: %w", err)
		}
		all = append(all, o)
	}
	return all, rows.Err()
}

func scanExecution(row scanner) (*skerryv1.Execution, error) {
	var record []byte
	err := row.Scan(&record)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	e := &skerryv1.Execution{}
	if err := proto.Unmarshal(record, e); err != nil {
		return nil, fmt.Errorf("read execution: %w", err)
	}
	return e, nil
}

// Trim drops the output text of ended executions, whose logs are gone too.
// Their ids, keys and outcomes stay for ever.
func (j *Journal) Trim(ctx context.Context, ids []string) error {
	return j.update(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			e, err := scanExecution(tx.QueryRow("SELECT record FROM executions WHERE id = ?", id))
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			for _, o := range []*skerryv1.Output{e.Stdout, e.Stderr} {
				if o != nil {
					o.Text, o.OmittedBytes = "", o.TotalBytes
				}
			}
			record, err := proto.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := tx.Exec("UPDATE executions SET record = ? WHERE id = ?", record, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// LastExecution gives the newest id; "" when there is none.
func (j *Journal) LastExecution(ctx context.Context) (string, error) {
	var id sql.NullString
	err := j.read.QueryRowContext(ctx, "SELECT max(id) FROM executions").Scan(&id)
	return id.String, err
}
