package peer

import (
	"sync"
	"time"
)

// Progress is how far a pull has come. Known grows while the tree is walked.
type Progress struct {
	Objects      int64 `json:"objects"` // received and checked
	Bytes        int64 `json:"bytes"`   // of their records
	KnownObjects int64 `json:"knownObjects"`
	KnownBytes   int64 `json:"knownBytes"` // of records that were announced
}

// progressEvery is the least time between two reports.
const progressEvery = 200 * time.Millisecond

// meter counts and reports.
type meter struct {
	report func(Progress) // may be nil

	mu   sync.Mutex
	now  Progress
	last time.Time
}

func (m *meter) add(p Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Objects += p.Objects
	m.now.Bytes += p.Bytes
	m.now.KnownObjects += p.KnownObjects
	m.now.KnownBytes += p.KnownBytes
	if m.report != nil && time.Since(m.last) >= progressEvery {
		m.report(m.now)
		m.last = time.Now()
	}
}

// end reports the last state and returns it.
func (m *meter) end() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.report != nil {
		m.report(m.now)
	}
	return m.now
}
