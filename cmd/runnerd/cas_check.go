package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
)

// verifyReport is what `cas verify --json` prints.
type verifyReport struct {
	OK        bool         `json:"ok"`
	Packs     int64        `json:"packs"`
	Records   int64        `json:"records"`
	Bytes     int64        `json:"bytes"`
	Heads     int64        `json:"heads"`
	Commits   int64        `json:"commits"`
	Pins      int64        `json:"pins"`
	Leases    int64        `json:"leases"`
	Reached   int64        `json:"reached"`
	Unindexed int64        `json:"unindexed"`
	LostPacks []uint64     `json:"lostPacks,omitempty"`
	Damaged   []damageLine `json:"damaged"`
	Missing   []lackLine   `json:"missing"`
	Meta      string       `json:"meta,omitempty"`
	Indexes   []indexLine  `json:"indexes,omitempty"`
	Seconds   float64      `json:"seconds"`
}

type damageLine struct {
	Digest cas.Digest `json:"digest"`
	Pack   uint64     `json:"pack"`
	Offset int64      `json:"offset"`
	Reason string     `json:"reason"`
}

type indexLine struct {
	File   string `json:"file"`
	Reason string `json:"reason"`
}

// lackLine names the head, the pin or the lease that needs the object.
type lackLine struct {
	Digest cas.Digest `json:"digest"`
	Head   string     `json:"head"`
	Pin    string     `json:"pin,omitempty"`
	Lease  string     `json:"lease,omitempty"`
	Commit cas.Digest `json:"commit"`
	Path   string     `json:"path"`
	Reason string     `json:"reason"`
}

func newVerifyReport(rep *cas.VerifyReport) verifyReport {
	r := verifyReport{OK: rep.OK(), Packs: rep.Packs, Records: rep.Records, Bytes: rep.Bytes, Heads: rep.Heads, Commits: rep.Commits,
		Pins: rep.Pins, Leases: rep.Leases, Reached: rep.Reached, Unindexed: rep.Unindexed, Damaged: []damageLine{}, Missing: []lackLine{}, LostPacks: rep.LostPacks, Meta: rep.Meta}
	for _, d := range rep.Damaged {
		r.Damaged = append(r.Damaged, damageLine(d))
	}
	for _, m := range rep.Missing {
		r.Missing = append(r.Missing, lackLine(m))
	}
	for _, x := range rep.Indexes {
		r.Indexes = append(r.Indexes, indexLine(x))
	}
	return r
}

func (r verifyReport) text(w io.Writer) error {
	for _, seq := range r.LostPacks {
		fmt.Fprintf(w, "lost: pack %016x\n", seq)
	}
	for _, d := range r.Damaged {
		fmt.Fprintf(w, "damaged: %s in pack %016x at %d: %s\n", d.Digest, d.Pack, d.Offset, d.Reason)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "missing: %s, which %s needs for %q: %s\n", m.Digest, m.root(), m.Path, m.Reason)
	}
	for _, x := range r.Indexes {
		fmt.Fprintf(w, "damaged: index %s: %s\n", x.File, x.Reason)
	}
	if r.Meta != "" {
		fmt.Fprintln(w, "damaged:", r.Meta)
	}
	_, err := fmt.Fprintf(w, "%d packs, %d records, %d bytes, %d unindexed; %d heads, %d commits, %d pins, %d leases, %d objects reached; %.3f s\n",
		r.Packs, r.Records, r.Bytes, r.Unindexed, r.Heads, r.Commits, r.Pins, r.Leases, r.Reached, r.Seconds)
	return err
}

func (m *lackLine) root() string {
	switch {
	case m.Pin != "":
		return fmt.Sprintf("pin %q", m.Pin)
	case m.Lease != "":
		return fmt.Sprintf("lease %q", m.Lease)
	}
	return fmt.Sprintf("head %q", m.Head)
}

// wrong says what verify found, as an error that matches cas.ErrCorrupt.
func (r *verifyReport) wrong() error {
	var found []string
	for _, x := range []struct {
		n    int64
		what string
	}{
		{int64(len(r.LostPacks)), "packs lost (put them back, or see `cas rm`)"},
		{int64(len(r.Damaged)), "records damaged"},
		{int64(len(r.Missing)), "objects missing (put the same content in again, or see `cas rm`)"},
		{r.Unindexed, "records not indexed (`cas rebuild` cures it)"},
		{int64(len(r.Indexes)), "index runs damaged (`cas rebuild` cures it)"},
	} {
		if x.n > 0 {
			found = append(found, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if r.Meta != "" {
		found = append(found, "meta.db damaged (restore it, or see --recover-meta)")
	}
	return fmt.Errorf("%s: %w", strings.Join(found, ", "), cas.ErrCorrupt)
}

func casVerify(f *casFlags) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Read the whole store and name what is damaged or missing",
		Long:    "Read the whole store, check every digest, follow every head, pin and lease, and name what is damaged or missing. Fails when there is any.",
		Example: "  runnerd cas verify --store S --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			var r verifyReport
			err := f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				rep, err := s.Verify(cmd.Context(), cas.VerifyOptions{Reachable: true})
				r = newVerifyReport(&rep)
				return err
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			if err := f.print(cmd.OutOrStdout(), r, r.text); err != nil {
				return err
			}
			if !r.OK {
				return r.wrong()
			}
			return nil
		},
	}
}

func casRebuild(f *casFlags) *cobra.Command {
	return &cobra.Command{
		Use: "rebuild", Short: "Make every index anew from the packs",
		Example: "  runnerd cas rebuild --store S", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				if err := s.Rebuild(cmd.Context()); err != nil {
					return err
				}
				return f.printStats(cmd, s)
			})
		},
	}
}

// gcReport is what `cas gc --json` prints.
type gcReport struct {
	Kept              int64   `json:"kept"`
	Removed           int64   `json:"removed"`
	Missing           int64   `json:"missing,omitempty"` // contents that are needed and not there
	PacksRemoved      int     `json:"packsRemoved"`
	BytesFreed        int64   `json:"bytesFreed"`
	BytesMoved        int64   `json:"bytesMoved"`
	StatCachesDropped int     `json:"statCachesDropped"`
	Seconds           float64 `json:"seconds"`
}

func casGC(f *casFlags) *cobra.Command {
	var keep int
	var grace bool
	c := &cobra.Command{
		Use: "gc", Short: "Remove what no head needs",
		Long: "Remove what no head, pin or lease needs, and give the space back at once. With --grace what was written since the\n" +
			"last collection stays, and what is removed lies in DIR/trash until the next. Nothing is removed when a directory, chunk\n" +
			"list or commit that is needed is damaged or lost: heal it, or let go of what needs it with `cas rm`.",
		Example: "  runnerd cas gc --keep 10 --store S", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep < 0 {
				return fmt.Errorf("--keep %d: give the number of commits of each head to keep, or 0 for all", keep)
			}
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				rep, err := s.GC(cmd.Context(), cas.GCOptions{NoGrace: !grace, Keep: func(string) int { return keep }})
				if err != nil {
					return err
				}
				r := gcReport{rep.Kept, rep.Removed, rep.Missing, rep.PacksRemoved, rep.BytesFreed, rep.BytesMoved, rep.StatCachesDropped, rep.Duration.Seconds()}
				return f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
					_, err := fmt.Fprintf(w, "%d objects removed, %d kept; %d packs removed, %d bytes freed, %d bytes moved; %.3f s\n",
						r.Removed, r.Kept, r.PacksRemoved, r.BytesFreed, r.BytesMoved, r.Seconds)
					if err == nil && r.Missing > 0 {
						_, err = fmt.Fprintf(w, "%d contents of files are needed and not in the store; `runnerd cas verify` names the files\n", r.Missing)
					}
					return err
				})
			})
		},
	}
	c.Flags().IntVar(&keep, "keep", 0, "how many of each head's latest commits to keep; 0: all")
	c.Flags().BoolVar(&grace, "grace", false, "keep what was written since the last collection, and fill the trash instead of freeing")
	return c
}

// statsReport is what `cas stats --json` prints.
type statsReport struct {
	UUID      string `json:"uuid"`
	Packs     int    `json:"packs"`
	PackBytes int64  `json:"packBytes"`
	Objects   int64  `json:"objects"`
	Heads     int    `json:"heads"`
}

func casStats(f *casFlags) *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "Tell how large the store is",
		Example: "  runnerd cas stats --store S --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error { return f.printStats(cmd, s) })
		},
	}
}

func (f *casFlags) printStats(cmd *cobra.Command, s *cas.Store) error {
	st, err := s.Stats(cmd.Context())
	if err != nil {
		return err
	}
	r := statsReport{st.UUID, st.Packs, st.PackBytes, st.Objects, st.Heads}
	return f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "store %s: %d packs, %d bytes, %d objects, %d heads\n", r.UUID, r.Packs, r.PackBytes, r.Objects, r.Heads)
		return err
	})
}
