package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const transferSchema = `
CREATE TABLE IF NOT EXISTS transfers (
	id         TEXT PRIMARY KEY,
	spec       BLOB NOT NULL,
	status     BLOB NOT NULL,
	ended      INTEGER NOT NULL DEFAULT 0,
	cancel     INTEGER NOT NULL DEFAULT 0,
	expanded   INTEGER NOT NULL DEFAULT 0,
	batch_base TEXT,
	batch_from INTEGER NOT NULL DEFAULT 0,
	batch_to   INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS transfers_open ON transfers (id) WHERE ended = 0;
CREATE INDEX IF NOT EXISTS transfers_ended ON transfers (ended) WHERE ended > 0;
CREATE TABLE IF NOT EXISTS transfer_files (
	transfer TEXT NOT NULL,
	seq      INTEGER NOT NULL,
	mapping  INTEGER NOT NULL,
	path     BLOB NOT NULL,
	type     TEXT NOT NULL,
	size     INTEGER NOT NULL,
	state    TEXT NOT NULL,
	reason   TEXT NOT NULL DEFAULT '',
	message  TEXT NOT NULL DEFAULT '',
	PRIMARY KEY (transfer, seq)
) WITHOUT ROWID;
`

// Transfer is the record of a transfer into a workspace of this runner.
type Transfer struct {
	// Spec is what the coordinator asked for, with the latest grant.
	Spec   *skerryv1.RunTransferRequest
	Status *skerryv1.TransferStatus
	Ended  bool
	Cancel bool
	// Expanded: its files are recorded.
	Expanded bool
	// Batch is what was being written when this was recorded last.
	Batch Batch
}

// Batch is a run of files that are written and committed together.
type Batch struct {
	// Base is the digest of the commit before it; "" before the first.
	Base string
	// From and To are the places of the first and the last file; 0: no batch.
	From, To int64
}

// TransferFile is one file, symlink or directory of a transfer. Seq is its
// place, from 1.
type TransferFile struct {
	Seq     int64
	Mapping int
	Path    string // in the target workspace
	Type    string
	Size    int64
	State   string
	Reason  string
	Message string
}

// AcceptTransfer records a transfer, unless it is known: then its grant and source are renewed.
func (j *Journal) AcceptTransfer(ctx context.Context, spec *skerryv1.RunTransferRequest, status *skerryv1.TransferStatus) error {
	rawSpec, err := proto.Marshal(spec)
	if err != nil {
		return err
	}
	rawStatus, err := proto.Marshal(status)
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO transfers (id, spec, status) VALUES (?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET spec = excluded.spec WHERE ended = 0`, spec.TransferId, rawSpec, rawStatus)
		return err
	})
}

const selectTransfer = "SELECT spec, status, ended, cancel, expanded, batch_base, batch_from, batch_to FROM transfers"

// Transfer reads one transfer.
func (j *Journal) Transfer(ctx context.Context, id string) (Transfer, error) {
	return scanTransfer(j.read.QueryRowContext(ctx, selectTransfer+" WHERE id = ?", id))
}

// OpenTransfers lists the transfers that have not ended, oldest first.
func (j *Journal) OpenTransfers(ctx context.Context) ([]Transfer, error) {
	rows, err := j.read.QueryContext(ctx, selectTransfer+" WHERE ended = 0 ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []Transfer
	for rows.Next() {
		t, err := scanTransfer(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, rows.Err()
}

func scanTransfer(row scanner) (Transfer, error) {
	t := Transfer{Spec: &skerryv1.RunTransferRequest{}, Status: &skerryv1.TransferStatus{}}
	var spec, status []byte
	var ended int64
	var base sql.NullString
	err := row.Scan(&spec, &status, &ended, &t.Cancel, &t.Expanded, &base, &t.Batch.From, &t.Batch.To)
	if errors.Is(err, sql.ErrNoRows) {
		return t, ErrNotFound
	}
	if err != nil {
		return t, err
	}
	t.Ended, t.Batch.Base = ended > 0, base.String
	return t, errors.Join(proto.Unmarshal(spec, t.Spec), proto.Unmarshal(status, t.Status))
}

// CancelTransfer records the wish to end a transfer. One that is not known is
// recorded as cancelled, so that a call that begins it and comes late does not.
func (j *Journal) CancelTransfer(ctx context.Context, id string, now time.Time) error {
	spec, err := proto.Marshal(&skerryv1.RunTransferRequest{TransferId: id})
	if err != nil {
		return err
	}
	status, err := proto.Marshal(&skerryv1.TransferStatus{State: skerryv1.StateCancelled, Counts: &skerryv1.TransferCounts{}})
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO transfers (id, spec, status, ended, cancel, expanded) VALUES (?, ?, ?, ?, 1, 1)
			ON CONFLICT (id) DO UPDATE SET cancel = 1 WHERE ended = 0`, id, spec, status, now.UnixMilli())
		return err
	})
}

// AddTransferFiles records files; the last call has the status that they lead
// to. What an interrupted expansion left is replaced.
func (j *Journal) AddTransferFiles(ctx context.Context, id string, files []TransferFile, last *skerryv1.TransferStatus) error {
	raw, err := proto.Marshal(last)
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		err := insertFiles(tx, id, files)
		if err == nil && last != nil {
			_, err = tx.Exec("UPDATE transfers SET expanded = 1, status = ? WHERE id = ?", raw, id)
		}
		return err
	})
}

func insertFiles(tx *sql.Tx, id string, files []TransferFile) error {
	insert, err := tx.Prepare(`INSERT OR REPLACE INTO transfer_files (transfer, seq, mapping, path, type, size, state, reason, message)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	for _, f := range files {
		if _, err := insert.Exec(id, f.Seq, f.Mapping, []byte(f.Path), f.Type, f.Size, f.State, f.Reason, f.Message); err != nil {
			return err
		}
	}
	return nil
}

// BeginBatch records what is going to be written.
func (j *Journal) BeginBatch(ctx context.Context, id string, b Batch) error {
	return j.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec("UPDATE transfers SET batch_base = ?, batch_from = ?, batch_to = ? WHERE id = ?", b.Base, b.From, b.To, id)
		return err
	})
}

// EndBatch records outcomes, with the status that they lead to, in one step.
func (j *Journal) EndBatch(ctx context.Context, id string, outcomes []TransferFile, status *skerryv1.TransferStatus) error {
	raw, err := proto.Marshal(status)
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		set, err := tx.Prepare("UPDATE transfer_files SET state = ?, reason = ?, message = ? WHERE transfer = ? AND seq = ?")
		if err != nil {
			return err
		}
		defer func() { _ = set.Close() }()
		for _, f := range outcomes {
			if _, err := set.Exec(f.State, f.Reason, f.Message, id, f.Seq); err != nil {
				return err
			}
		}
		_, err = tx.Exec("UPDATE transfers SET status = ?, batch_base = NULL, batch_from = 0, batch_to = 0 WHERE id = ?", raw, id)
		return err
	})
}

// EndTransfer gives all files that have no outcome this one, those that are
// added included, and records the end.
func (j *Journal) EndTransfer(ctx context.Context, id string, added []TransferFile, rest TransferFile, status *skerryv1.TransferStatus, now time.Time) error {
	raw, err := proto.Marshal(status)
	if err != nil {
		return err
	}
	return j.update(ctx, func(tx *sql.Tx) error {
		if err := insertFiles(tx, id, added); err != nil {
			return err
		}
		_, err := tx.Exec("UPDATE transfer_files SET state = ?, reason = ?, message = ? WHERE transfer = ? AND state = ?",
			rest.State, rest.Reason, rest.Message, id, skerryv1.FilePending)
		if err == nil {
			_, err = tx.Exec("UPDATE transfers SET status = ?, ended = ?, batch_base = NULL, batch_from = 0, batch_to = 0 WHERE id = ?", raw, now.UnixMilli(), id)
		}
		return err
	})
}

// TransferFiles gives files behind a place, in their order; state "" means all.
func (j *Journal) TransferFiles(ctx context.Context, id string, after int64, state string, limit int) ([]TransferFile, error) {
	rows, err := j.read.QueryContext(ctx, `SELECT seq, mapping, path, type, size, state, reason, message FROM transfer_files
		WHERE transfer = ?1 AND seq > ?2 AND (?3 = '' OR state = ?3) ORDER BY seq LIMIT ?4`, id, after, state, limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []TransferFile
	for rows.Next() {
		var f TransferFile
		var path []byte
		if err := rows.Scan(&f.Seq, &f.Mapping, &path, &f.Type, &f.Size, &f.State, &f.Reason, &f.Message); err != nil {
			return nil, err
		}
		f.Path = string(path)
		all = append(all, f)
	}
	return all, rows.Err()
}

// PruneTransfers forgets ended transfers, with their files: all but the newest
// keep, and those that ended before.
func (j *Journal) PruneTransfers(ctx context.Context, keep int, before time.Time) error {
	return j.update(ctx, func(tx *sql.Tx) error {
		const old = `SELECT id FROM transfers WHERE ended > 0 AND (ended < ?1 OR id NOT IN
			(SELECT id FROM transfers WHERE ended > 0 ORDER BY ended DESC LIMIT ?2))`
		if _, err := tx.Exec("DELETE FROM transfer_files WHERE transfer IN ("+old+")", before.UnixMilli(), keep); err != nil {
			return fmt.Errorf("forget transfers: %w", err)
		}
		_, err := tx.Exec("DELETE FROM transfers WHERE id IN ("+old+")", before.UnixMilli(), keep)
		return err
	})
}
