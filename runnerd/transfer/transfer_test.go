package transfer

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/proto/grant"
	"skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/peerrpc"
	"skerry.internal/runnerd/workspace"
)

// cluster is an authority and the key that signs grants.
type cluster struct {
	t         *testing.T
	authority *authority
	key       ed25519.PrivateKey
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t, newAuthority(t), key}
}

// bench is a runner without a daemon.
type bench struct {
	*Manager
	c       *cluster
	dir     string
	store   *cas.Store
	journal *journal.Journal
	spaces  *workspace.Manager
	id      *identity.Identity
	address string
	relay   func() (Relay, error)
	stop    func()
}

func (c *cluster) runner(name string) *bench {
	c.t.Helper()
	b := &bench{c: c, dir: c.t.TempDir()}
	var err error
	if b.id, err = identity.Open(filepath.Join(b.dir, "tls")); err != nil {
		c.t.Fatal(err)
	}
	request, err := b.id.Request(name)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := b.id.Install(c.authority.sign(c.t, request, name), c.authority.pem); err != nil {
		c.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	b.address = ln.Addr().String()
	b.open(name, Batch{})
	server := &http.Server{TLSConfig: b.id.ServerMutualTLS(identity.RoleRunner), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, h := b.PeerHandler(func(r *http.Request) string {
			p, _ := identity.PeerOf(r.TLS)
			return p.Name
		})
		h.ServeHTTP(w, r)
	})}
	go func() { _ = server.ServeTLS(ln, "", "") }()
	c.t.Cleanup(func() { _ = server.Close() })
	return b
}

// open makes what a daemon has; again after a stop, as after a crash.
func (b *bench) open(name string, batch Batch) {
	t := b.c.t
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	if b.store, err = cas.Open(context.Background(), filepath.Join(b.dir, "cas"), cas.Config{Logger: log}); err != nil {
		t.Fatal(err)
	}
	if b.journal, err = journal.Open(context.Background(), b.dir); err != nil {
		t.Fatal(err)
	}
	cfg := workspace.Config{MaxQueue: 8, MaxChangedPaths: 10, MaxFileBytes: 1 << 30}
	if os.Geteuid() == 0 {
		cfg.FirstUID, cfg.UIDs = 2_000_000_000, 10
	}
	if b.spaces, err = workspace.NewManager(filepath.Join(b.dir, "ws"), b.store, b.journal, cfg, log, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	b.Manager = New(Config{Name: name, Advertise: b.address, Direct: func() *tls.Config { return b.id.ClientTLS(identity.RoleRunner) }, Batch: batch,
		Relay: func() (Relay, error) {
			if b.relay == nil {
				return Relay{}, errors.New("no coordinator")
			}
			return b.relay()
		}}, b.store, b.journal, b.spaces, log, nil)
	if err := b.SetGrantKeys(t.Context(), [][]byte{b.c.key.Public().(ed25519.PublicKey)}); err != nil {
		t.Fatal(err)
	}
	var stopped bool
	manager, store, j := b.Manager, b.store, b.journal
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		manager.Close()
		if err := errors.Join(j.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(b.stop)
}

func (b *bench) workspace(files map[string]string) *workspace.Workspace {
	t := b.c.t
	t.Helper()
	w, err := b.spaces.Get(t.Context(), ids.New(ids.Workspace, 1, time.Now()).String(), "ann", 1)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(w.Tree(), path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.Tree(), path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Commit(t.Context(), "write:x"); err != nil {
		t.Fatal(err)
	}
	return w
}

// spec prepares a transfer of mappings from one runner to another.
func (c *cluster) spec(from, to *bench, source, target *workspace.Workspace, mappings ...*skerryv1.TransferMapping) *skerryv1.RunTransferRequest {
	c.t.Helper()
	id := ids.New(ids.Transfer, 1, time.Now()).String()
	p, err := from.Prepare(c.t.Context(), &skerryv1.PrepareTransferRequest{TransferId: id, Agent: "ann", Workspace: source.ID, Epoch: 1, Mappings: mappings})
	if err != nil {
		c.t.Fatal(err)
	}
	return &skerryv1.RunTransferRequest{TransferId: id, Agent: "ann", Workspace: target.ID, Epoch: 1, Root: p.Root, Mappings: mappings, Problems: p.Problems,
		Entries: p.Entries, Bytes: p.Bytes, Source: &skerryv1.PullSource{Runner: from.cfg.Name, Peer: p.Peer, Grant: c.grant(p.Root, from.cfg.Name, to.cfg.Name)}}
}

func (c *cluster) grant(root, source, audience string) string {
	c.t.Helper()
	token, err := grant.Sign(c.key, root, source, audience, time.Now(), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	return token
}

func (b *bench) finish(spec *skerryv1.RunTransferRequest) *skerryv1.TransferStatus {
	t := b.c.t
	t.Helper()
	for range 200 {
		s, err := b.Run(t.Context(), spec, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if skerryv1.TransferEnded(s.GetState()) {
			return s
		}
	}
	t.Fatal("transfer does not end")
	return nil
}

func mapping(from, to string) *skerryv1.TransferMapping {
	return &skerryv1.TransferMapping{Source: from, Target: to}
}

func TestDirect(t *testing.T) {
	c := newCluster(t)
	a, b := c.runner("a"), c.runner("b")
	w := b.workspace(map[string]string{"have": "x"})
	s := b.finish(c.spec(a, b, a.workspace(map[string]string{"d/f": "one", "d/e/g": "two"}), w, mapping("d", "in")))
	if s.State != "completed" || s.Route != "direct" || s.Counts.Completed != 4 {
		t.Fatalf("ended %v", s)
	}
	if text, err := os.ReadFile(w.Tree() + "/in/e/g"); err != nil || string(text) != "two" {
		t.Errorf("in/e/g: %q %v", text, err)
	}
	if pinned, err := b.store.Pinned(t.Context()); err != nil || len(pinned) != 0 {
		t.Errorf("kept: %v %v", pinned, err)
	}
	if err := a.Release(t.Context(), "tr_none"); err != nil {
		t.Error(err)
	}
}

// A direct way that leads to another runner, or nowhere, is left for the relay.
func TestF48WrongAddressFallsBackToTheRelay(t *testing.T) {
	c := newCluster(t)
	a, b, other := c.runner("a"), c.runner("b"), c.runner("other")
	relay := http.NewServeMux()
	path, h := a.PeerHandler(func(*http.Request) string { return "b" })
	relay.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(skerryv1.HeaderSource) != "a" {
			http.Error(w, "who?", http.StatusNotFound)
			return
		}
		h.ServeHTTP(w, r)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: relay, Protocols: &plain}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	transport := peerrpc.NewTransport(nil)
	t.Cleanup(transport.CloseIdleConnections)
	b.relay = func() (Relay, error) {
		return Relay{"http://" + ln.Addr().String(), peerrpc.HTTPClient(transport)}, nil
	}
	for name, p := range map[string]*skerryv1.PeerAddress{
		"another runner": {Address: other.address, Host: b.host}, "another host's loopback": {Address: a.address, Host: "elsewhere"},
		"nobody": {Address: "127.0.0.1:1", Host: b.host}, "everybody": {Address: "0.0.0.0:7430"}, "none": {}, "nonsense": {Address: "a b c"},
	} {
		w := b.workspace(nil)
		spec := c.spec(a, b, a.workspace(map[string]string{"f": name}), w, mapping("f", "f"))
		spec.Source.Peer = p
		if s := b.finish(spec); s.State != "completed" || s.Route != "relay" {
			t.Errorf("%s: ended %v", name, s)
		}
	}
}

func TestGrantsAreChecked(t *testing.T) {
	c := newCluster(t)
	a, b := c.runner("a"), c.runner("b")
	source := a.workspace(map[string]string{"f": "secret"})
	for name, token := range map[string]func(root string) string{
		"another's":    func(root string) string { return c.grant(root, "a", "x") },
		"another tree": func(string) string { return c.grant(source.HeadSnapshot().Digest, "a", "b") },
	} {
		spec := c.spec(a, b, source, b.workspace(nil), mapping("f", "f"))
		spec.Source.Grant = token(spec.Root)
		s := b.finish(spec)
		if s.State != "failed" || s.Problem == nil {
			t.Errorf("%s: ended %v", name, s)
		}
	}
	// One that no key signed is waited for to be renewed, and a cancel ends that.
	spec := c.spec(a, b, source, b.workspace(nil), mapping("f", "f"))
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Source.Grant, err = grant.Sign(key, spec.Root, "a", "b", time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	s, err := b.Run(t.Context(), spec, 500*time.Millisecond)
	if err != nil || s.State != "running" {
		t.Fatalf("%v %v", s, err)
	}
	if _, err := b.Stop(t.Context(), spec.TransferId); err != nil {
		t.Fatal(err)
	}
	if s := b.finish(spec); s.State != "cancelled" || s.Counts.Cancelled != 1 {
		t.Errorf("cancelled: %v", s)
	}
	// A cancel that comes before the transfer itself holds.
	late := c.spec(a, b, source, b.workspace(nil), mapping("f", "f"))
	if _, err := b.Stop(t.Context(), late.TransferId); err != nil {
		t.Fatal(err)
	}
	if s := b.finish(late); s.State != "cancelled" {
		t.Errorf("begun after its cancel: %v", s)
	}
}

// I3, I4: whatever was written, committed or recorded when the daemon stopped,
// each file has the outcome that its commit tells.
func TestI3LeftBatchIsResolved(t *testing.T) {
	c := newCluster(t)
	for _, tc := range []struct {
		name    string
		written int  // files that were put into the directory
		commit  bool // and committed, by whom ever
		other   bool // and then somebody else changed one of them and committed
	}{{"nothing", 0, false, false}, {"some, committed as recovery", 2, true, false}, {"all", 4, true, false}, {"all, and changed since", 4, true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := c.runner("a"), c.runner("b")
			files := map[string]string{"d/1": "1", "d/2": "2", "d/3": "3"}
			w := b.workspace(map[string]string{"keep": "x"})
			spec := c.spec(a, b, a.workspace(files), w, mapping("d", "d"))
			spec.Conflict = skerryv1.ConflictReject
			leave(t, b, spec, w)
			for i, name := range []string{"", "1", "2", "3"}[:tc.written] {
				if i == 0 {
					mkdir(t, w.Tree()+"/d")
					continue
				}
				write(t, w.Tree()+"/d/"+name, name)
			}
			if tc.commit {
				if _, err := w.Commit(t.Context(), "recovery:"); err != nil {
					t.Fatal(err)
				}
			}
			if tc.other {
				write(t, w.Tree()+"/d/1", "changed")
				if _, err := w.Commit(t.Context(), "execution:x"); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := b.finish(spec)
			if s.State != "completed" || s.Counts.Completed != 4 {
				t.Errorf("ended %v", s)
			}
			want := "1"
			if tc.other {
				want = "changed" // it was copied, and then changed: not copied again
			}
			if text, err := os.ReadFile(w.Tree() + "/d/1"); err != nil || string(text) != want {
				t.Errorf("d/1: %q %v", text, err)
			}
		})
	}
}

// leave records a transfer as one that was stopped in its first batch.
func leave(t *testing.T, b *bench, spec *skerryv1.RunTransferRequest, w *workspace.Workspace) {
	t.Helper()
	ctx := t.Context()
	if _, _, err := b.pull(ctx, mustDigest(t, spec.Root), func() *skerryv1.PullSource { return spec.Source }, leased(spec.TransferId)); err != nil {
		t.Fatal(err)
	}
	status := &skerryv1.TransferStatus{State: "running", Counts: &skerryv1.TransferCounts{Pending: spec.Entries}}
	if err := b.journal.AcceptTransfer(ctx, spec, status); err != nil {
		t.Fatal(err)
	}
	rec, err := b.journal.Transfer(ctx, spec.TransferId)
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(b.Manager, rec)
	if err := j.expand(mustDigest(t, spec.Root)); err != nil {
		t.Fatal(err)
	}
	batch := journal.Batch{Base: w.Head().Commit.String(), From: firstSeq + 1, To: firstSeq + 4}
	if err := b.journal.BeginBatch(ctx, spec.TransferId, batch); err != nil {
		t.Fatal(err)
	}
}

func TestFencedTargetFails(t *testing.T) {
	c := newCluster(t)
	a, b := c.runner("a"), c.runner("b")
	w := b.workspace(nil)
	spec := c.spec(a, b, a.workspace(map[string]string{"f": "x"}), w, mapping("f", "f"))
	if fenced, err := w.Fence(t.Context(), 2); err != nil || !fenced {
		t.Fatal(fenced, err)
	}
	s := b.finish(spec)
	if s.State != "failed" || s.Problem.GetReason() != problem.Fenced || s.Counts.Failed != 1 {
		t.Errorf("ended %v", s)
	}
}

func TestReplicaIsReplaced(t *testing.T) {
	c := newCluster(t)
	a, b := c.runner("a"), c.runner("b")
	w := a.workspace(map[string]string{"f": "1"})
	var trees []string
	for i := range 3 {
		write(t, w.Tree()+"/f", fmt.Sprint(i))
		if _, err := w.Commit(t.Context(), "write:f"); err != nil {
			t.Fatal(err)
		}
		tree := w.HeadSnapshot().Digest
		trees = append(trees, tree)
		offer, err := a.Offer(t.Context(), &skerryv1.OfferReplicaRequest{Workspace: w.ID, Agent: "ann", Epoch: 1, Tree: tree})
		if err != nil {
			t.Fatal(err)
		}
		req := &skerryv1.PullReplicaRequest{Workspace: w.ID, Tree: tree, Source: &skerryv1.PullSource{Runner: "a", Peer: offer.Peer, Grant: c.grant(tree, "a", "b")}}
		if res, err := b.PullReplica(t.Context(), req); err != nil || res.Route != "direct" {
			t.Fatal(res, err)
		}
	}
	pinned, err := b.store.Pinned(t.Context())
	if err != nil || len(pinned) != 1 || pinned[0].Tree.String() != trees[2] {
		t.Fatalf("kept %v %v", pinned, err)
	}
	if _, err := b.Offer(t.Context(), &skerryv1.OfferReplicaRequest{Workspace: w.ID, Tree: trees[0], Replica: true}); connect.CodeOf(problem.Connect(err)) != connect.CodeNotFound {
		t.Errorf("an old replica is offered: %v", err)
	}
	got, err := b.Adopt(t.Context(), &skerryv1.AdoptWorkspaceRequest{Workspace: w.ID, Agent: "ann", Epoch: 2, Tree: trees[2], Commit: w.HeadSnapshot().Commit, Seq: w.HeadSnapshot().Seq})
	if err != nil || got.HeadSnapshot().Seq != w.HeadSnapshot().Seq+1 || got.Epoch() != 2 {
		t.Fatalf("adopted %v %v", got.HeadSnapshot(), err)
	}
	if text, err := os.ReadFile(got.Tree() + "/f"); err != nil || string(text) != "2" {
		t.Errorf("f: %q %v", text, err)
	}
	if pinned, err := b.store.Pinned(t.Context()); err != nil || len(pinned) != 0 {
		t.Errorf("still kept: %v %v", pinned, err)
	}
	// A workspace that is assigned anew before its restore was recorded goes on from here.
	if _, err := b.Offer(t.Context(), &skerryv1.OfferReplicaRequest{Workspace: w.ID, Tree: trees[2], Replica: true}); err != nil {
		t.Errorf("what the replica became is not offered: %v", err)
	}
	if _, err := b.Offer(t.Context(), &skerryv1.OfferReplicaRequest{Workspace: w.ID, Tree: trees[1], Replica: true}); connect.CodeOf(problem.Connect(err)) != connect.CodeNotFound {
		t.Errorf("what the workspace never had here is offered: %v", err)
	}
}
