package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	"skerry.internal/runnerd/journal"
)

// Config is what an operator may choose.
type Config struct {
	// FirstUID and UIDs are the range that agents' uids come from. UIDs 0: the
	// daemon is an ordinary user and everything belongs to it.
	FirstUID, UIDs uint32
	// MaxQueue bounds the writers that wait for one workspace.
	MaxQueue int
	// MaxChangedPaths bounds each list of changed paths in a record.
	MaxChangedPaths int
	// MaxFileBytes bounds one written or uploaded file.
	MaxFileBytes int64
	// Quota bounds what each workspace may hold.
	Quota Quota
	// Admit refuses new writers when the host has no room for them. May be nil.
	Admit func(context.Context) error
	Floor Floor
	// Step is told of each step of a commit after which the daemon may crash. It
	// is for tests, which crash there; nil: nobody is.
	Step func(step string)
}

func (c Config) step(step string) {
	if c.Step != nil {
		c.Step(step)
	}
}

// Manager opens workspaces and keeps them open.
type Manager struct {
	dir     string
	store   *cas.Store
	journal *journal.Journal
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	mu       sync.Mutex
	open     map[string]*Workspace
	watchers map[chan *Workspace]struct{}
	// stopped ends every Watch.
	stopped chan struct{}
	stop    sync.Once
}

// NewManager uses dir/ID/tree as the directory of workspace ID. It owns neither
// the store nor the journal.
func NewManager(dir string, store *cas.Store, j *journal.Journal, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Manager, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	return &Manager{dir: dir, store: store, journal: j, cfg: cfg, log: log, metrics: newMetrics(reg),
		open: map[string]*Workspace{}, watchers: map[chan *Workspace]struct{}{}, stopped: make(chan struct{})}, nil
}

// Get opens the workspace that the coordinator assigned, creating it when new.
func (m *Manager) Get(ctx context.Context, id, agent string, epoch uint64) (*Workspace, error) {
	if _, err := ids.Parse(ids.Workspace, id); err != nil {
		return nil, problem.Missing("workspace", "no workspace %q", id)
	}
	m.mu.Lock()
	w := m.open[id]
	m.mu.Unlock()
	if w != nil && w.Agent == agent && w.Epoch() == epoch {
		return w, nil
	}
	record, err := m.journal.EnsureWorkspace(ctx, id, agent, epoch)
	switch {
	case errors.Is(err, journal.ErrFenced):
		return nil, problem.New(connect.CodeAborted, problem.Fenced, "ask the coordinator again: the workspace was assigned anew",
			"epoch %d of workspace %s is over", epoch, id).Because(err)
	case errors.Is(err, journal.ErrNotFound):
		return nil, problem.Missing("workspace", "no workspace %q", id)
	case err != nil:
		return nil, err
	}
	return m.load(ctx, record)
}

// Recorded opens every workspace of the journal, for recovery at start.
func (m *Manager) Recorded(ctx context.Context) (map[string]*Workspace, error) {
	records, err := m.journal.Workspaces(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]*Workspace{}
	for _, r := range records {
		if all[r.ID], err = m.load(ctx, r); err != nil {
			return nil, fmt.Errorf("open workspace %s: %w", r.ID, err)
		}
	}
	return all, nil
}

func (m *Manager) load(ctx context.Context, r journal.Workspace) (*Workspace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.open[r.ID]; w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.Epoch > w.epoch {
			if err := m.store.Fence(ctx, r.ID, r.Epoch); err != nil {
				return nil, err
			}
			w.epoch = r.Epoch
		}
		return w, nil
	}
	w := &Workspace{ID: r.ID, Agent: r.Agent, UID: -1, GID: -1, dir: filepath.Join(m.dir, r.ID), manager: m,
		lane: lane{most: m.cfg.MaxQueue}, repair: make(chan struct{}), tried: make(chan struct{}), epoch: r.Epoch, state: r.State, detail: r.Detail}
	if m.cfg.UIDs > 0 {
		uid, err := m.journal.AgentUID(ctx, r.Agent, m.cfg.FirstUID, m.cfg.UIDs)
		if err != nil {
			return nil, err
		}
		w.UID, w.GID = int(uid), int(uid)
	}
	head, err := m.store.Head(ctx, r.ID)
	if err != nil && !errors.Is(err, cas.ErrNotFound) {
		return nil, err
	}
	if w.head = head; head.Seq > 0 {
		if w.last, err = m.store.ReadCommit(ctx, head.Commit); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.makeDirs(), w.setProject()); err != nil {
		return nil, err
	}
	m.open[r.ID] = w
	return w, nil
}

// makeDirs creates what is missing. The tree belongs to the agent alone. Its
// parents can be passed by every user but not listed, which saves the sandbox a
// mount namespace.
func (w *Workspace) makeDirs() error {
	if err := os.MkdirAll(w.dir, 0o711); err != nil {
		return err
	}
	// What a crash left staged belongs to no write any more.
	if err := cas.RemoveTree(w.dir + "/tmp"); err != nil {
		return err
	}
	if err := os.Mkdir(w.dir+"/tmp", 0o700); err != nil {
		return err
	}
	if err := cas.EndRestores(w.Tree()); err != nil {
		return err
	}
	err := os.Mkdir(w.Tree(), 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil || w.UID < 0 {
		return err
	}
	return os.Lchown(w.Tree(), w.UID, w.GID)
}

// StopWatching ends every Watch without an error.
func (m *Manager) StopWatching() { m.stop.Do(func() { close(m.stopped) }) }

// Watch calls fn for each open workspace and then for each change, until ctx
// ends, fn fails or StopWatching. Changes that come faster than fn are merged.
func (m *Manager) Watch(ctx context.Context, fn func([]*Workspace) error) error {
	ch := make(chan *Workspace, 64)
	m.mu.Lock()
	m.watchers[ch] = struct{}{}
	all := m.list()
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.watchers, ch)
		m.mu.Unlock()
	}()
	for {
		if err := fn(all); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.stopped:
			return nil
		case w := <-ch:
			all = m.drain(ch, w)
		}
	}
}

// drain collects what is waiting. A full channel means that changes were not
// queued, and then everything is given again.
func (m *Manager) drain(ch chan *Workspace, first *Workspace) []*Workspace {
	if len(ch) >= cap(ch)-1 {
		for len(ch) > 0 {
			<-ch
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.list()
	}
	seen := map[*Workspace]bool{first: true}
	all := []*Workspace{first}
	for len(ch) > 0 {
		if w := <-ch; !seen[w] {
			seen[w] = true
			all = append(all, w)
		}
	}
	return all
}

func (m *Manager) list() []*Workspace {
	all := make([]*Workspace, 0, len(m.open))
	for _, w := range m.open {
		all = append(all, w)
	}
	return all
}

// Announce tells those that watch that what is told along with the workspace
// has changed, such as how much runs here.
func (w *Workspace) Announce() { w.manager.publish(w) }

func (m *Manager) publish(w *Workspace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ch := range m.watchers {
		select {
		case ch <- w:
		default: // full: drain gives everything again
		}
	}
}
