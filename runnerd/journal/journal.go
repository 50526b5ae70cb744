// Package journal is a runner's own durable state: one SQLite file that holds
// executions, workspaces, the uid of each agent and the runner's number. There
// is one writer, which commits waiting changes as a group; what a call
// acknowledged is on disk (WAL, synchronous=FULL).
package journal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite" // also registers the "sqlite" driver
)

// ErrNotFound is returned for a record that does not exist.
var ErrNotFound = errors.New("journal: not found")

// ErrClosed is returned by writes after Close.
var ErrClosed = errors.New("journal: closed")

// ErrFull is returned for a change that the disk has no room for. Nothing of it
// was recorded.
var ErrFull = errors.New("journal: disk is full")

// ErrSchema is returned for a file written by a newer version.
var ErrSchema = errors.New("journal: schema of a newer version")

const schemaVersion = 1

const schema = `
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agents (
	name TEXT PRIMARY KEY,
	uid  INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workspaces (
	id     TEXT PRIMARY KEY,
	agent  TEXT NOT NULL,
	epoch  INTEGER NOT NULL,
	state  TEXT NOT NULL,
	detail TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS executions (
	id        TEXT PRIMARY KEY,
	agent     TEXT NOT NULL,
	workspace TEXT NOT NULL,
	idem_key  TEXT,
	idem_hash BLOB,
	state     TEXT NOT NULL,
	record    BLOB NOT NULL,
	launch    BLOB
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS executions_idem ON executions (agent, idem_key) WHERE idem_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS executions_agent ON executions (agent, id);
CREATE INDEX IF NOT EXISTS executions_open ON executions (id) WHERE state IN ('queued', 'running');
`

// Journal is safe for concurrent use.
type Journal struct {
	write *sql.DB // one connection, used by the writer goroutine alone
	read  *sql.DB

	requests chan *request
	done     chan struct{}
	// Closed and renewed after each end of an execution.
	ended atomic.Pointer[chan struct{}]

	mu     sync.RWMutex // held for reading while a request is being queued
	closed bool
}

type request struct {
	apply  func(tx *sql.Tx) error
	result chan error
}

// Open opens or creates the file journal.db in dir.
func Open(ctx context.Context, dir string) (*Journal, error) {
	file := filepath.Join(dir, "journal.db")
	write, err := open(file, 1, "&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", file, err)
	}
	if err := migrate(ctx, write); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w", file, err), write.Close())
	}
	read, err := open(file, 4, "&_pragma=query_only(1)")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w", file, err), write.Close())
	}
	j := &Journal{write: write, read: read, requests: make(chan *request, 256), done: make(chan struct{})}
	j.notifyEnded()
	go j.run()
	return j, nil
}

func open(file string, conns int, extra string) (*sql.DB, error) {
	dsn := "file:" + (&url.URL{Path: file}).EscapedPath() +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)" + extra
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > schemaVersion {
		return fmt.Errorf("%w: file has %d, this program knows %d; start a newer runnerd", ErrSchema, version, schemaVersion)
	}
	if _, err := db.ExecContext(ctx, schema+transferSchema); err != nil {
		return err
	}
	if err := migrateEnds(ctx, db); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
	return err
}

// Close waits for queued writes and closes the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	close(j.requests)
	j.mu.Unlock()
	<-j.done
	return errors.Join(j.read.Close(), j.write.Close())
}

// update runs apply in the next group commit. apply may run only once and must
// not keep tx. The change is durable when update returns nil. Cancelling ctx
// does not undo a change that was already queued: update waits for its fate.
func (j *Journal) update(ctx context.Context, apply func(tx *sql.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{apply: apply, result: make(chan error, 1)}
	j.mu.RLock()
	if j.closed {
		j.mu.RUnlock()
		return ErrClosed
	}
	j.requests <- r
	j.mu.RUnlock()
	return <-r.result
}

func (j *Journal) run() {
	defer close(j.done)
	for first := range j.requests {
		group := []*request{first}
		for len(group) < cap(j.requests) {
			select {
			case r, ok := <-j.requests:
				if ok {
					group = append(group, r)
					continue
				}
			default:
			}
			break
		}
		j.commit(group)
	}
}

// commit applies a group in one transaction. A request that fails is undone
// alone, by its savepoint; a failed commit fails the whole group.
func (j *Journal) commit(group []*request) {
	results := make([]error, len(group))
	err := func() error {
		tx, err := j.write.Begin()
		if err != nil {
			return err
		}
		for i, r := range group {
			if results[i], err = applyOne(tx, r.apply, len(group) > 1); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			if results[i] != nil && len(group) == 1 {
				return tx.Rollback()
			}
		}
		return tx.Commit()
	}()
	for i, r := range group {
		if err != nil {
			r.result <- fmt.Errorf("journal commit: %w", named(err))
			continue
		}
		r.result <- named(results[i])
	}
}

// named adds our own error to one of the driver's that callers act on.
func named(err error) error {
	const sqliteFull = 13
	var driver *sqlite.Error
	if errors.As(err, &driver) && driver.Code()&0xff == sqliteFull {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func applyOne(tx *sql.Tx, apply func(*sql.Tx) error, savepoint bool) (result, fatal error) {
	if !savepoint {
		return apply(tx), nil
	}
	if _, err := tx.Exec("SAVEPOINT one"); err != nil {
		return nil, err
	}
	result = apply(tx)
	if result != nil {
		if _, err := tx.Exec("ROLLBACK TO one"); err != nil {
			return nil, err
		}
	}
	_, err := tx.Exec("RELEASE one")
	return result, err
}
