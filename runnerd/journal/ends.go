package journal

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"

	"google.golang.org/protobuf/proto"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// metaEndLog names this file's numbering of ends: a new file begins another.
const metaEndLog = "end_log"

// migrateEnds adds what numbers the ends of executions to a file of old. Those
// that ended before have no number and are not told.
func migrateEnds(ctx context.Context, db *sql.DB) error {
	var have int
	err := db.QueryRowContext(ctx, "SELECT count(*) FROM pragma_table_info('executions') WHERE name = 'end_seq'").Scan(&have)
	if err != nil {
		return err
	}
	if have == 0 {
		if _, err := db.ExecContext(ctx, "ALTER TABLE executions ADD COLUMN end_seq INTEGER"); err != nil {
			return err
		}
	}
	if _, err := db.ExecContext(ctx, "CREATE UNIQUE INDEX IF NOT EXISTS executions_ended ON executions (end_seq) WHERE end_seq IS NOT NULL"); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", metaEndLog, rand.Text())
	return err
}

// EndLog names the numbering that EndsAfter uses.
func (j *Journal) EndLog(ctx context.Context) (string, error) { return j.Meta(ctx, metaEndLog) }

// End is a recorded end and its number; numbers grow and are never given twice.
type End struct {
	Seq    uint64
	Record *skerryv1.Execution
}

// EndsAfter lists ends by number, at most limit. An execution whose end was
// recorded twice has its last number alone.
func (j *Journal) EndsAfter(ctx context.Context, after uint64, limit int) ([]End, error) {
	rows, err := j.read.QueryContext(ctx, "SELECT end_seq, record FROM executions WHERE end_seq > ? ORDER BY end_seq LIMIT ?", after, limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []End
	for rows.Next() {
		var record []byte
		end := End{Record: &skerryv1.Execution{}}
		if err := rows.Scan(&end.Seq, &record); err != nil {
			return nil, err
		}
		if err := proto.Unmarshal(record, end.Record); err != nil {
			return nil, fmt.Errorf("read execution: %w", err)
		}
		all = append(all, end)
	}
	return all, rows.Err()
}

// Ended is closed after the next end is recorded.
func (j *Journal) Ended() <-chan struct{} { return *j.ended.Load() }

func (j *Journal) notifyEnded() {
	next := make(chan struct{})
	if old := j.ended.Swap(&next); old != nil {
		close(*old)
	}
}
