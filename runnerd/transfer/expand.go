package transfer

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
)

// expandRun is how many files are recorded in one step.
const expandRun = 5000

// expand records every file of the tree with where it goes.
func (j *job) expand(root cas.Digest) error {
	x := &expansion{job: j, counts: &skerryv1.TransferCounts{}}
	for _, f := range j.failedMappings() {
		x.add(f)
	}
	if !root.IsZero() {
		if err := j.m.store.Walk(j.m.ctx, root, "", x.visit); err != nil {
			if j.m.ctx.Err() != nil {
				return errStopping
			}
			return err
		}
	}
	status := j.update(func(s *skerryv1.TransferStatus) { s.Counts, s.Bytes = x.counts, x.bytes })
	if err := x.flush(status); err != nil {
		return err
	}
	j.expanded = true
	return nil
}

// failedMappings are files that have failed already, without a source.
func (j *job) failedMappings() []journal.TransferFile {
	var files []journal.TransferFile
	for _, p := range j.spec.GetProblems() {
		i := int(p.GetMapping())
		if i >= len(j.spec.GetMappings()) {
			continue
		}
		files = append(files, journal.TransferFile{Seq: int64(i + 1), Mapping: i, Path: j.spec.GetMappings()[i].GetTarget(), State: skerryv1.StateFailed,
			Reason: p.GetProblem().GetReason(), Message: p.GetProblem().GetMessage()})
	}
	return files
}

// firstSeq leaves places for as many mappings as there may be.
const firstSeq = 1000

type expansion struct {
	job    *job
	files  []journal.TransferFile
	counts *skerryv1.TransferCounts
	bytes  uint64
	n      int64
}

func (x *expansion) add(f journal.TransferFile) {
	if f.State == skerryv1.StateFailed {
		x.counts.Failed++
	} else {
		x.counts.Pending++
		x.bytes += uint64(f.Size)
	}
	x.files = append(x.files, f)
}

func (x *expansion) visit(p string, e cas.Entry) error {
	if x.n++; x.n > MaxEntries {
		return problem.Limit("mappings", fmt.Sprintf("%d files, directories and symlinks a transfer", MaxEntries), "split it")
	}
	mapping, target, err := x.job.target(p)
	if err != nil {
		return err
	}
	if target == "" && e.Type == cas.TypeDir { // the workspace itself
		return nil
	}
	f := journal.TransferFile{Seq: firstSeq + x.n, Mapping: mapping, Path: target, Type: e.Type.String(), State: skerryv1.FilePending}
	if e.Type == cas.TypeFile {
		f.Size = e.Size
	}
	x.add(f)
	if len(x.files) < expandRun {
		return nil
	}
	return x.flush(nil)
}

func (x *expansion) flush(last *skerryv1.TransferStatus) error {
	err := x.job.m.journal.AddTransferFiles(context.WithoutCancel(x.job.m.ctx), x.job.id, x.files, last)
	x.files = x.files[:0]
	return err
}

// target gives the mapping of a path in the tree, and where it goes.
func (j *job) target(p string) (int, string, error) {
	first, rest, _ := strings.Cut(p, "/")
	i, err := strconv.Atoi(first)
	if err != nil || i < 0 || i >= len(j.spec.GetMappings()) {
		return 0, "", problem.Invalid("root", "call through a coordinator", "the tree has entry %q, which is no mapping", workspace.Display(first))
	}
	target := j.spec.GetMappings()[i].GetTarget()
	switch {
	case rest == "":
		return i, target, nil
	case target == "":
		return i, rest, nil
	}
	return i, target + "/" + rest, nil
}

// place is the reverse of target.
func (j *job) place(f journal.TransferFile) string {
	top := strconv.Itoa(f.Mapping)
	target := j.spec.GetMappings()[f.Mapping].GetTarget()
	if f.Path == target {
		return top
	}
	if target == "" {
		return top + "/" + f.Path
	}
	return top + strings.TrimPrefix(f.Path, target)
}

// treeReader finds entries of a tree that come in its order without reading a
// directory for each.
type treeReader struct {
	store *cas.Store
	root  cas.Digest
	dirs  map[string]map[string]cas.Entry
}

const cachedDirs = 64

func newTreeReader(store *cas.Store, root cas.Digest) *treeReader {
	return &treeReader{store: store, root: root, dirs: map[string]map[string]cas.Entry{}}
}

// find gives the entry at p; false: there is none. Links are not followed.
func (r *treeReader) find(ctx context.Context, p string) (cas.Entry, bool, error) {
	entries, err := r.dir(ctx, path.Dir(p))
	if err != nil {
		return cas.Entry{}, false, err
	}
	x, ok := entries[path.Base(p)]
	return x, ok, nil
}

func (r *treeReader) dir(ctx context.Context, p string) (map[string]cas.Entry, error) {
	if entries, ok := r.dirs[p]; ok {
		return entries, nil
	}
	tree := r.root
	if p != "." {
		x, ok, err := r.find(ctx, p)
		if err != nil || !ok || x.Type != cas.TypeDir {
			return nil, err
		}
		tree = x.Digest
	}
	if tree.IsZero() {
		return nil, nil
	}
	dir, err := r.store.ReadDir(ctx, tree)
	if err != nil {
		return nil, err
	}
	entries := make(map[string]cas.Entry, len(dir.Entries))
	for _, x := range dir.Entries {
		entries[x.Name] = x
	}
	if len(r.dirs) >= cachedDirs {
		clear(r.dirs)
	}
	r.dirs[p] = entries
	return entries, nil
}
