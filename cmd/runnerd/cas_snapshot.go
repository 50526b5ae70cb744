package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
)

// snapshotReport is what `cas snapshot --json` prints.
type snapshotReport struct {
	Digest   cas.Digest `json:"digest"` // of the tree
	Commit   cas.Digest `json:"commit"`
	Head     string     `json:"head"`
	Seq      uint64     `json:"seq"`
	Files    int64      `json:"files"`
	Dirs     int64      `json:"dirs"`
	Bytes    int64      `json:"bytes"`
	NewFiles int64      `json:"newFiles"` // files that were read
	NewBytes int64      `json:"newBytes"` // bytes that the store did not have
	Skipped  int64      `json:"skipped"`
	Unstable int64      `json:"unstable"`
	// The first of what was skipped, and of the files that changed each time they
	// were read.
	SkippedPaths  []droppedLine `json:"skippedPaths,omitempty"`
	UnstablePaths []droppedLine `json:"unstablePaths,omitempty"`
	// What is not kept of entries that are: set-id and sticky bits, access
	// control lists, extended attributes over a limit. The list has the first.
	DroppedModes  int64         `json:"droppedModes"`
	DroppedXattrs int64         `json:"droppedXattrs"`
	Dropped       []droppedLine `json:"dropped,omitempty"`
	// Files that were read though the stat cache vouched for them, and those
	// of them that it was wrong about: then all files were read.
	Rechecked       int64   `json:"rechecked"`
	CacheMismatches int64   `json:"cacheMismatches"`
	CacheMismatch   string  `json:"cacheMismatch,omitempty"` // the first one's path
	Seconds         float64 `json:"seconds"`
}

// droppedLine is an entry of which something is not kept. A name that is not
// UTF-8 is exact in pathBytes; the root is "".
type droppedLine struct {
	Path      string `json:"path"`
	PathBytes []byte `json:"pathBytes"`
	What      string `json:"what"`
}

// maxDroppedLines bounds the list; the counts count all.
const maxDroppedLines = 100

// lineList gives the first of a list.
func lineList[T any](all []T, line func(T) droppedLine) (out []droppedLine) {
	for _, x := range all[:min(len(all), maxDroppedLines)] {
		out = append(out, line(x))
	}
	return out
}

func droppedLines(res *cas.SnapshotResult) (out []droppedLine) {
	add := func(path, what string) {
		if len(out) < maxDroppedLines {
			out = append(out, droppedLine{path, []byte(path), what})
		}
	}
	for _, x := range res.DroppedXattrs {
		add(x.Path, x.Reason.String())
	}
	for _, x := range res.Dropped {
		add(x.Path, fmt.Sprintf("mode bits %04o", x.Mode&0o7000))
	}
	return out
}

func casSnapshot(f *casFlags) *cobra.Command {
	var head string
	var trust bool
	c := &cobra.Command{
		Use: "snapshot DIR", Short: "Store a directory durably, as the next commit of a head",
		Long: "Store a directory durably, as the next commit of a head. When nothing changed since the head's last commit,\n" +
			"no commit is made. Special files and what cannot be read are recorded by name and counted as skipped.",
		Example: "  runnerd cas snapshot ~/project --store /var/backups/store --json", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			start := time.Now()
			name, err := headName(head, args[0])
			if err != nil {
				return err
			}
			var r snapshotReport
			err = f.withStore(cmd.Context(), true, func(s *cas.Store) error {
				r, err = snapshotTo(cmd.Context(), s, args[0], name, trust)
				return err
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			return f.print(cmd.OutOrStdout(), r, r.text)
		},
	}
	c.Flags().StringVar(&head, "head", "", `the head to commit to (default "cli:" and the absolute path of DIR)`)
	c.Flags().BoolVar(&trust, "trust-cache", false, "do not read a few of the files that the stat cache vouches for")
	return c
}

// headName is the head that a directory is kept under.
func headName(flag, dir string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	abs, err := filepath.Abs(dir)
	return "cli:" + abs, err
}

// snapshotTo stores dir and moves the head unless it is there already.
func snapshotTo(ctx context.Context, s *cas.Store, from, head string, trust bool) (snapshotReport, error) {
	dir, err := os.Open(from)
	if err != nil {
		return snapshotReport{}, err
	}
	defer dir.Close()
	res, err := s.Snapshot(ctx, dir, cas.SnapshotOptions{CacheKey: head, TrustCache: trust})
	if err != nil {
		return snapshotReport{}, err
	}
	h, err := s.Head(ctx, head)
	if err != nil && !errors.Is(err, cas.ErrNotFound) {
		return snapshotReport{}, err
	}
	if h.Tree != res.Tree {
		h, err = s.Commit(ctx, cas.CommitRequest{Head: head, Expect: h.Commit, Epoch: h.Epoch, Tree: res.Tree, Source: "cli", Stats: res.TreeStats})
		if err != nil {
			return snapshotReport{}, err
		}
	}
	return snapshotReport{
		Digest: res.Tree, Commit: h.Commit, Head: head, Seq: h.Seq, Files: res.Files, Dirs: res.Dirs, Bytes: res.Bytes,
		NewFiles: res.NewFiles, NewBytes: res.NewBytes, Skipped: res.TreeStats.Skipped, Unstable: res.UnstableTotal,
		Rechecked: res.Rechecked, CacheMismatches: res.CacheMismatches, CacheMismatch: res.CacheMismatch,
		DroppedModes: res.DroppedTotal, DroppedXattrs: res.DroppedXattrsTotal, Dropped: droppedLines(&res),
		SkippedPaths: lineList(res.Skipped, func(x cas.Skipped) droppedLine {
			return droppedLine{x.Path, []byte(x.Path), x.Kind.String() + ", " + x.Reason.String()}
		}),
		UnstablePaths: lineList(res.Unstable, func(p string) droppedLine { return droppedLine{p, []byte(p), "changed each time it was read"} }),
	}, nil
}

func (r snapshotReport) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s: commit %d, %d files, %d bytes, %d bytes new, %d skipped, %d unstable, %.3f s\n",
		r.Digest, r.Head, r.Seq, r.Files, r.Bytes, r.NewBytes, r.Skipped, r.Unstable, r.Seconds)
	if err == nil && r.CacheMismatches > 0 {
		_, err = fmt.Fprintf(w, "the stat cache was wrong about %q, so every file was read\n", r.CacheMismatch)
	}
	for _, list := range []struct {
		what  string
		lines []droppedLine
	}{{"skipped", r.SkippedPaths}, {"unstable", r.UnstablePaths}, {"not kept of", r.Dropped}} {
		for i := 0; i < len(list.lines) && err == nil; i++ {
			_, err = fmt.Fprintf(w, "%s %q: %s\n", list.what, list.lines[i].Path, list.lines[i].What)
		}
	}
	return err
}

// restoreReport is what `cas restore --json` prints.
type restoreReport struct {
	Digest   cas.Digest `json:"digest"` // of the tree
	Files    int64      `json:"files"`
	Dirs     int64      `json:"dirs"`
	Symlinks int64      `json:"symlinks"`
	Links    int64      `json:"links"` // further names of hard-linked files
	Bytes    int64      `json:"bytes"`
	Cloned   int64      `json:"clonedBytes"` // not written, since the file system shares them with what DIR had
	Skipped  int64      `json:"skipped"`
	NoXattrs int64      `json:"noXattrs"` // that the file system took not all extended attributes of
	Seconds  float64    `json:"seconds"`
}

func casRestore(f *casFlags) *cobra.Command {
	o := cas.RestoreOptions{}
	c := &cobra.Command{
		Use: "restore DIGEST DIR", Short: "Write a tree to a directory",
		Long: "Write a tree to a directory that does not exist or is empty (or see --replace). DIGEST is that of a tree or a commit,\n" +
			"or a head's name. The directory appears whole and durable, or stays as it was. A snapshot of it reads nothing anew.",
		Example: "  runnerd cas restore sha256:... /tmp/copy --store /var/backups/store\n" +
			"  runnerd cas restore cli:/home/me/project /tmp/src --path src --store /var/backups/store", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			start := time.Now()
			var r restoreReport
			err := f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				tree, err := resolveTree(cmd.Context(), s, args[0])
				if err != nil {
					return err
				}
				if o.CacheKey, err = headName("", args[1]); err != nil {
					return err
				}
				o, err := oneEntry(cmd.Context(), s, tree, o)
				if err != nil {
					return err
				}
				if err := cas.EndRestores(args[1]); err != nil && !errors.Is(err, os.ErrNotExist) { // of a run that was interrupted
					return err
				}
				res, err := s.Restore(cmd.Context(), tree, args[1], o)
				r = restoreReport{tree, res.Files, res.Dirs, res.Symlinks, res.Links, res.Bytes, res.ClonedBytes, res.SkippedTotal, res.NoXattrsTotal, 0}
				return errors.Join(err, res.NotRemoved)
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			return f.print(cmd.OutOrStdout(), r, r.text)
		},
	}
	c.Flags().BoolVar(&o.Replace, "replace", false, "let DIR hold something: exchange it for the tree in one step, and remove it")
	c.Flags().StringVar(&o.Path, "path", "", "restore only this of the tree: a directory's content, or a file or symlink into DIR")
	c.Flags().IntVar(&o.UID, "uid", -1, "owner of all that is restored (default: the caller)")
	c.Flags().IntVar(&o.GID, "gid", -1, "group of all that is restored (default: the caller's)")
	return c
}

// oneEntry makes a path that is no directory the one entry of the directory above.
func oneEntry(ctx context.Context, s *cas.Store, tree cas.Digest, o cas.RestoreOptions) (cas.RestoreOptions, error) {
	if o.Path == "" {
		return o, nil
	}
	x, err := s.Lookup(ctx, tree, o.Path)
	if err != nil || x.Type == cas.TypeDir {
		return o, err
	}
	o.Only, o.Path, o.CacheKey = path.Base(o.Path), path.Dir(o.Path), ""
	return o, nil
}

func (r restoreReport) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d files, %d directories, %d symlinks, %d hard links, %d bytes, %d bytes shared, %d skipped in the snapshot, %d without all their attributes, %.3f s\n",
		r.Files, r.Dirs, r.Symlinks, r.Links, r.Bytes, r.Cloned, r.Skipped, r.NoXattrs, r.Seconds)
	return err
}
