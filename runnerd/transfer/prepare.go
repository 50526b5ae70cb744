package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
)

// leaseLife is for how many collections a tree is kept for a transfer that
// nobody ends: weeks, or most of a day where the disk is nearly full.
const leaseLife = 1000

func outgoing(id string) string { return "transfer-out:" + id }
func incoming(id string) string { return "transfer-in:" + id }

// Prepare makes the tree of what is to be copied, with an entry for each
// mapping whose source there is, and keeps it. Preparing again gives the same.
func (m *Manager) Prepare(ctx context.Context, req *skerryv1.PrepareTransferRequest) (*skerryv1.PrepareTransferResponse, error) {
	w, err := m.workspaces.Get(ctx, req.GetWorkspace(), req.GetAgent(), req.GetEpoch())
	if err != nil {
		return nil, err
	}
	v, err := w.View(ctx, req.GetSnapshot())
	if err != nil {
		return nil, err
	}
	session, err := m.store.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	defer session.End()
	out := &skerryv1.PrepareTransferResponse{Snapshot: v.Digest(), Peer: m.address()}
	root := &cas.Directory{Root: true}
	for i, mapping := range req.GetMappings() {
		x, err := m.source(ctx, v, mapping.GetSource())
		if err != nil {
			p, err := mappingProblem(i, err)
			if err != nil {
				return nil, err
			}
			out.Problems = append(out.Problems, p)
			continue
		}
		x.Name = strconv.Itoa(i)
		root.Entries = append(root.Entries, x)
	}
	if len(root.Entries) == 0 {
		return out, nil
	}
	slices.SortFunc(root.Entries, func(a, b cas.Entry) int { return cmp.Compare(a.Name, b.Name) })
	tree, err := m.store.PutDirectory(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("make tree of transfer: %w", err)
	}
	if err := m.count(ctx, tree, out); err != nil {
		return nil, err
	}
	out.Root = tree.String()
	return out, m.store.Lease(ctx, outgoing(req.GetTransferId()), tree, leaseLife)
}

// source finds what a mapping names. The whole tree becomes a directory like others.
func (m *Manager) source(ctx context.Context, v *workspace.View, path string) (cas.Entry, error) {
	x, resolved, err := v.Lookup(ctx, path, false)
	if err != nil {
		return x, err
	}
	if x.Type != cas.TypeDir || (resolved != "" && resolved != ".") {
		return x, nil
	}
	if v.Tree.IsZero() {
		return x, problem.Missing("source", "nothing is committed in the workspace yet")
	}
	top, err := m.store.ReadDir(ctx, v.Tree)
	if err != nil {
		return x, err
	}
	plain := &cas.Directory{Entries: top.Entries, Skipped: top.Skipped}
	x = cas.Entry{Type: cas.TypeDir, Mode: top.Mode, MTime: top.MTime}
	x.Digest, err = m.store.PutDirectory(ctx, plain)
	return x, err
}

// mappingProblem tells the failure of one mapping from that of the source.
func mappingProblem(i int, err error) (*skerryv1.MappingProblem, error) {
	var typed *problem.Error
	if !errors.As(err, &typed) {
		return nil, err
	}
	return &skerryv1.MappingProblem{Mapping: uint32(i), Problem: &skerryv1.TransferProblem{Reason: typed.Reason, Message: typed.Message}}, nil
}

func (m *Manager) count(ctx context.Context, tree cas.Digest, out *skerryv1.PrepareTransferResponse) error {
	return m.store.Walk(ctx, tree, "", func(_ string, x cas.Entry) error {
		if out.Entries++; out.Entries > MaxEntries {
			return problem.Limit("mappings", fmt.Sprintf("%d files, directories and symlinks a transfer", MaxEntries), "split it, or pack them into an archive")
		}
		if x.Type == cas.TypeFile {
			out.Bytes += uint64(x.Size)
		}
		return ctx.Err()
	})
}

// Release lets go of what Prepare kept.
func (m *Manager) Release(ctx context.Context, id string) error {
	if err := m.store.EndLease(ctx, outgoing(id)); err != nil && !errors.Is(err, cas.ErrNotFound) {
		return err
	}
	return nil
}
