package transfer

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
)

func replicaPin(id string) string { return "replica:" + id }

// Offer checks that this runner has the tree that a replica, or a workspace
// that moves, is to be made of, and tells where it is read.
func (m *Manager) Offer(ctx context.Context, req *skerryv1.OfferReplicaRequest) (*skerryv1.OfferReplicaResponse, error) {
	tree, err := cas.ParseDigest(req.GetTree())
	if err != nil {
		return nil, problem.Invalid("tree", "send a digest", "is no digest")
	}
	missing := problem.Missing("tree", "this runner does not keep that tree for the workspace")
	if req.GetReplica() {
		kept, err := m.keepsReplica(ctx, req.GetWorkspace(), tree)
		if err == nil && !kept {
			err = missing
		}
		return &skerryv1.OfferReplicaResponse{Peer: m.address()}, err
	}
	w, err := m.workspaces.Get(ctx, req.GetWorkspace(), req.GetAgent(), req.GetEpoch())
	if err != nil {
		return nil, err
	}
	if _, err := w.View(ctx, req.GetTree()); err != nil {
		return nil, err
	}
	return &skerryv1.OfferReplicaResponse{Peer: m.address()}, nil
}

// keepsReplica reports whether the tree is the replica, or became part of the
// workspace itself here: one that is assigned anew while this runner restores it
// goes on from what this runner has.
func (m *Manager) keepsReplica(ctx context.Context, id string, tree cas.Digest) (bool, error) {
	kept, err := m.store.PinnedTree(ctx, replicaPin(id))
	if err == nil && kept == tree {
		return true, nil
	}
	if err != nil && !errors.Is(err, cas.ErrNotFound) {
		return false, err
	}
	w := m.workspaces.Open(id)
	if w == nil || tree.IsZero() {
		return false, nil
	}
	_, err = w.View(ctx, tree.String())
	return err == nil, nil
}

// PullReplica brings a tree here and keeps it in the place of the one before.
func (m *Manager) PullReplica(ctx context.Context, req *skerryv1.PullReplicaRequest) (*skerryv1.PullReplicaResponse, error) {
	tree, err := cas.ParseDigest(req.GetTree())
	if err != nil || tree.IsZero() {
		return nil, problem.Invalid("tree", "send a digest", "is no digest")
	}
	name := replicaPin(req.GetWorkspace())
	if kept, err := m.store.PinnedTree(ctx, name); err == nil && kept == tree {
		return &skerryv1.PullReplicaResponse{}, nil
	}
	return m.bounded(ctx, func(ctx context.Context) (*skerryv1.PullReplicaResponse, error) {
		route, n, err := m.pull(ctx, tree, func() *skerryv1.PullSource { return req.GetSource() }, peer.PullOptions{Pin: name})
		if err != nil {
			return nil, pullProblem(err)
		}
		return &skerryv1.PullReplicaResponse{Bytes: uint64(n), Route: route}, nil
	})
}

// bounded runs a pull that no transfer waits for.
func (m *Manager) bounded(ctx context.Context, pull func(context.Context) (*skerryv1.PullReplicaResponse, error)) (*skerryv1.PullReplicaResponse, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, shuttingDown()
	}
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	select {
	case m.pulls <- struct{}{}:
		defer func() { <-m.pulls }()
		return pull(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func pullProblem(err error) error {
	var typed *problem.Error
	if errors.As(err, &typed) || errors.Is(err, context.Canceled) {
		return err
	}
	p := transferProblem(err)
	e := problem.New(connect.CodeUnavailable, p.GetReason(), "repeat the call", "%s", p.GetMessage()).Because(err)
	e.Retryable = !final(err)
	return e
}

// DropReplica lets go of a replica.
func (m *Manager) DropReplica(ctx context.Context, id string) error {
	if err := m.store.Unpin(ctx, replicaPin(id)); err != nil && !errors.Is(err, cas.ErrNotFound) {
		return err
	}
	return nil
}

// Adopt makes a workspace that was assigned to this runner what the replica
// has, and goes on with its history. Adopting again gives it as it is.
func (m *Manager) Adopt(ctx context.Context, req *skerryv1.AdoptWorkspaceRequest) (*workspace.Workspace, error) {
	from := cas.Commit{Seq: req.GetSeq()}
	var bad [2]error
	if req.GetTree() != "" {
		from.Tree, bad[0] = cas.ParseDigest(req.GetTree())
		from.Digest, bad[1] = cas.ParseDigest(req.GetCommit())
	}
	if err := errors.Join(bad[:]...); err != nil {
		return nil, problem.Invalid("tree", "call through a coordinator", "tree or commit is no digest")
	}
	if !from.Tree.IsZero() && req.GetSource().GetRunner() != "" && req.GetSource().GetRunner() != m.cfg.Name {
		if _, err := m.PullReplica(ctx, &skerryv1.PullReplicaRequest{Workspace: req.GetWorkspace(), Tree: req.GetTree(), Source: req.GetSource()}); err != nil {
			return nil, err
		}
	}
	w, err := m.workspaces.Get(ctx, req.GetWorkspace(), req.GetAgent(), req.GetEpoch())
	if err != nil {
		return nil, err
	}
	ticket, err := w.Requeue()
	if err != nil {
		return nil, err
	}
	defer ticket.Release()
	if err := ticket.Wait(ctx); err != nil {
		return nil, err
	}
	if err := w.Adopt(context.WithoutCancel(ctx), from); err != nil {
		return nil, err
	}
	return w, m.DropReplica(ctx, req.GetWorkspace()) // the head keeps it now
}

// Wait is how long RunTransfer may be asked to wait.
const Wait = 30 * time.Second
