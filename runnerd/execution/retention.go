package execution

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skerry.internal/proto/ids"
)

const retentionInterval = 10 * time.Minute

// StartRetention removes, now and then, the directories (logs) of executions
// that ended long ago or are beyond the number kept. Of their
// records the text goes too.
func (e *Engine) StartRetention() {
	e.wg.Go(func() {
		tick := time.NewTicker(retentionInterval)
		defer tick.Stop()
		for {
			e.retain()
			select {
			case <-tick.C:
			case <-e.ctx.Done():
				return
			}
		}
	})
}

// retain looks at directories from the newest to the oldest: their names sort by time.
func (e *Engine) retain() {
	entries, err := os.ReadDir(e.cfg.Dir)
	if err != nil {
		e.log.Error("retention", "err", err)
		return
	}
	oldest := e.cfg.Now().Add(-e.cfg.KeepLogs)
	kept := 0
	var gone []string
	for i := len(entries) - 1; i >= 0; i-- {
		name, _, _ := strings.Cut(entries[i].Name(), ".")
		id, err := ids.Parse(ids.Execution, name)
		if err != nil || e.find(name) != nil {
			continue
		}
		if kept < e.cfg.KeepExecutions && id.Time().After(oldest) {
			kept++
			continue
		}
		if e.discard(entries[i]) {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return
	}
	if err := e.journal.Trim(e.ctx, gone); err != nil && e.ctx.Err() == nil {
		e.log.Error("retention", "err", err)
	}
}

func (e *Engine) discard(entry fs.DirEntry) bool {
	err := os.RemoveAll(filepath.Join(e.cfg.Dir, entry.Name()))
	if err != nil {
		e.log.Error("retention", "execution", entry.Name(), "err", err)
	}
	return err == nil
}
