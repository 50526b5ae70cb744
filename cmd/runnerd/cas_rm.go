package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
)

// removedLine is what `cas rm --json` prints: what was let go of.
type removedLine struct {
	Head   string     `json:"head,omitempty"`
	Pin    string     `json:"pin,omitempty"`
	Lease  string     `json:"lease,omitempty"`
	Digest cas.Digest `json:"digest"` // of the tree that it kept
}

func casRemove(f *casFlags) *cobra.Command {
	var r removedLine
	c := &cobra.Command{
		Use: "rm (--head NAME | --pin NAME | --lease NAME)", Short: "Let go of a head, a pin or a lease",
		Long: "Let go of a head, a pin or a lease, so that a collection may remove what nothing else needs; nothing is removed before.\n" +
			"Also the way out when something was lost for good: `cas verify` names what needs it, and collections refuse until\n" +
			"it is there again or let go of.",
		Example: "  runnerd cas rm --head cli:/home/me/project --store S\n  runnerd cas rm --pin project --store S --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				if err := r.remove(cmd.Context(), s); err != nil {
					if errors.Is(err, cas.ErrNotFound) {
						err = fmt.Errorf("%w; `runnerd cas ls` lists heads, pins and leases", err)
					}
					return err
				}
				return f.print(cmd.OutOrStdout(), r, r.text)
			})
		},
	}
	c.Flags().StringVar(&r.Head, "head", "", "the head to forget; its commits go with the next collection")
	c.Flags().StringVar(&r.Pin, "pin", "", "the pin to end")
	c.Flags().StringVar(&r.Lease, "lease", "", "the lease to end")
	c.MarkFlagsOneRequired("head", "pin", "lease")
	c.MarkFlagsMutuallyExclusive("head", "pin", "lease")
	return c
}

func (r *removedLine) remove(ctx context.Context, s *cas.Store) (err error) {
	switch {
	case r.Head != "":
		h, err := s.Head(ctx, r.Head)
		if r.Digest = h.Tree; err != nil {
			return err
		}
		return s.DeleteHead(ctx, r.Head)
	case r.Pin != "":
		if r.Digest, err = s.PinnedTree(ctx, r.Pin); err != nil {
			return err
		}
		return s.Unpin(ctx, r.Pin)
	case r.Lease != "":
		if r.Digest, err = s.LeasedTree(ctx, r.Lease); err != nil {
			return err
		}
		return s.EndLease(ctx, r.Lease)
	}
	return errors.New("the name is empty: give the name of a head, a pin or a lease")
}

func (r *removedLine) text(w io.Writer) error {
	kind, name := "head", r.Head
	switch {
	case r.Pin != "":
		kind, name = "pin", r.Pin
	case r.Lease != "":
		kind, name = "lease", r.Lease
	}
	_, err := fmt.Fprintf(w, "let go of %s %q, which kept %s\n", kind, name, r.Digest)
	return err
}
