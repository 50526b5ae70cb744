package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
)

// casFlags are what all store commands share.
type casFlags struct {
	store       string
	json        bool
	recoverMeta bool
}

// casCommand works on a store directory itself, without a daemon. The store is
// locked meanwhile, so a running daemon's store answers that it is in use.
func casCommand() *cobra.Command {
	f := &casFlags{}
	c := &cobra.Command{
		Use: "cas", Short: "Work on a content-addressed store without a daemon",
		Example: "  runnerd cas snapshot ~/project --store /var/backups/store\n" +
			"  runnerd cas ls --store /var/backups/store\n" +
			"  runnerd cas restore cli:/home/me/project /tmp/copy --store /var/backups/store",
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return fmt.Errorf("unknown command %q for runnerd cas; see runnerd cas --help", args[0])
	}
	c.PersistentFlags().StringVar(&f.store, "store", "", "the store's directory (required)")
	c.PersistentFlags().BoolVar(&f.json, "json", false, "print the result as JSON")
	c.PersistentFlags().BoolVar(&f.recoverMeta, "recover-meta", false, "when meta.db is lost or damaged, rebuild the heads from the commits in the packs")
	_ = c.MarkPersistentFlagRequired("store")
	c.AddCommand(casSnapshot(f), casRestore(f), casList(f), casDiff(f), casVerify(f), casGC(f), casRemove(f), casRebuild(f), casStats(f),
		casExport(f), casImport(f), casServe(f), casPull(f), casGrant(f), casKeygen(f), casREAPI(f))
	return c
}

// withStore opens the store, runs fn and closes the store. Only a command that
// writes may make a new one.
func (f *casFlags) withStore(ctx context.Context, create bool, fn func(*cas.Store) error) (err error) {
	if f.store == "" {
		return errors.New("--store is empty: give the store's directory")
	}
	if !create {
		_, err := os.Stat(filepath.Join(f.store, "format"))
		packs, _ := filepath.Glob(filepath.Join(f.store, "packs", "*.pack"))
		if errors.Is(err, os.ErrNotExist) && len(packs) == 0 { // with packs Open says what is missing
			return fmt.Errorf("%s holds no store; make one with: runnerd cas snapshot DIR --store %s", f.store, f.store)
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := cas.Open(ctx, f.store, cas.Config{Logger: log, RecoverMeta: f.recoverMeta})
	var meta *cas.MetaError
	if errors.Is(err, cas.ErrMetaLost) || errors.As(err, &meta) {
		return fmt.Errorf("%w (here: --recover-meta)", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return fn(s)
}

// print writes v as JSON or, by text, for people.
func (f *casFlags) print(w io.Writer, v any, text func(io.Writer) error) error {
	if f.json {
		return json.NewEncoder(w).Encode(v)
	}
	return text(w)
}

// resolveTree finds the tree that ref means: the digest of a tree or a commit, the
// name of a head, or "pin:" or "lease:" and the name of one.
func resolveTree(ctx context.Context, s *cas.Store, ref string) (cas.Digest, error) {
	d, err := cas.ParseDigest(ref)
	if err != nil {
		return resolveName(ctx, s, ref)
	}
	if d.IsZero() {
		return d, fmt.Errorf("%s is all zeros, which is no object's digest: %w", ref, cas.ErrNotFound)
	}
	if c, err := s.ReadCommit(ctx, d); err == nil {
		return c.Tree, nil
	}
	_, err = s.ReadDir(ctx, d)
	var damaged *cas.CorruptError
	if errors.Is(err, cas.ErrCorrupt) && !errors.As(err, &damaged) { // good bytes of something else
		return d, fmt.Errorf("%s is neither a tree nor a commit but something else, such as a file: %w", ref, cas.ErrNotDir)
	}
	return d, err
}

// resolveName finds the tree of a head, a pin or a lease. Should a head be named
// like a pin, it is the head.
func resolveName(ctx context.Context, s *cas.Store, ref string) (cas.Digest, error) {
	h, err := s.Head(ctx, ref)
	if !errors.Is(err, cas.ErrNotFound) {
		return h.Tree, err
	}
	if name, ok := strings.CutPrefix(ref, "pin:"); ok {
		return s.PinnedTree(ctx, name)
	}
	if name, ok := strings.CutPrefix(ref, "lease:"); ok {
		return s.LeasedTree(ctx, name)
	}
	return cas.Digest{}, fmt.Errorf("%q is neither a digest nor a head of this store, nor pin:NAME or lease:NAME; `runnerd cas ls` lists them: %w", ref, err)
}
