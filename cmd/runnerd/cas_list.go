package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
)

// headLine is a head as `cas ls --json` prints it.
type headLine struct {
	Head   string     `json:"head"`
	Digest cas.Digest `json:"digest"` // of the tree
	Commit cas.Digest `json:"commit"`
	Seq    uint64     `json:"seq"`
	Epoch  uint64     `json:"epoch"`
}

// pinnedLine is a pin or a lease as `cas ls --json` prints it.
type pinnedLine struct {
	Pin         string     `json:"pin,omitempty"`
	Lease       string     `json:"lease,omitempty"`
	Digest      cas.Digest `json:"digest"`
	Collections uint64     `json:"collections,omitempty"` // that the lease outlasts
}

// entryLine is an entry of a tree as `cas ls --json` and `cas diff --json`
// print it. A name that is not UTF-8 is exact in pathBytes.
type entryLine struct {
	Change    string     `json:"change,omitempty"`
	Path      string     `json:"path"`
	PathBytes []byte     `json:"pathBytes"`
	Type      string     `json:"type"`
	Mode      string     `json:"mode"`
	Size      int64      `json:"size"`
	Digest    cas.Digest `json:"digest"`
	MTime     time.Time  `json:"mtime"`
	Target    string     `json:"target,omitempty"`
	Xattrs    []xattr    `json:"xattrs,omitempty"`
}

// xattr is an extended attribute; raw bytes.
type xattr struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

func lineOf(path string, x *cas.Entry) entryLine {
	var xattrs []xattr
	for _, a := range x.Xattrs {
		xattrs = append(xattrs, xattr{[]byte(a.Name), []byte(a.Value)})
	}
	return entryLine{Path: path, PathBytes: []byte(path), Type: x.Type.String(), Mode: fmt.Sprintf("%04o", x.Mode),
		Size: x.Size, Digest: x.Digest, MTime: x.MTime, Target: x.Target, Xattrs: xattrs}
}

func (l *entryLine) text(w io.Writer) error {
	target := ""
	if l.Target != "" {
		target = fmt.Sprintf(" -> %q", l.Target)
	}
	_, err := fmt.Fprintf(w, "%s %-7s %12d %s %q%s\n", l.Mode, l.Type, l.Size, l.MTime.UTC().Format(time.RFC3339), l.Path, target)
	return err
}

func casList(f *casFlags) *cobra.Command {
	return &cobra.Command{
		Use: "ls [DIGEST [PATH]]", Short: "List the heads, pins and leases, or what a tree holds",
		Long: "List the heads, pins and leases, or what a tree holds below PATH. DIGEST is that of a tree or a commit, a head's name,\n" +
			"pin:NAME or lease:NAME, here and with the other commands. With --json each line is one object.",
		Example: "  runnerd cas ls --store S\n  runnerd cas ls pin:project --store S\n  runnerd cas ls cli:/home/me/project src --store S", Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				if err := f.list(cmd, s, args, out); err != nil {
					return err
				}
				return out.Flush()
			})
		},
	}
}

func (f *casFlags) list(cmd *cobra.Command, s *cas.Store, args []string, out io.Writer) error {
	if len(args) == 0 {
		return f.listHeads(cmd, s, out)
	}
	tree, err := resolveTree(cmd.Context(), s, args[0])
	if err != nil {
		return err
	}
	prefix := ""
	if len(args) == 2 {
		prefix = args[1]
	}
	return s.Walk(cmd.Context(), tree, prefix, func(path string, x cas.Entry) error {
		l := lineOf(path, &x)
		return f.print(out, l, l.text)
	})
}

func (f *casFlags) listHeads(cmd *cobra.Command, s *cas.Store, out io.Writer) error {
	heads, err := s.Heads(cmd.Context())
	if err != nil {
		return err
	}
	for _, h := range heads {
		l := headLine{h.Name, h.Tree, h.Commit, h.Seq, h.Epoch}
		err := f.print(out, l, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s %6d %q\n", l.Digest, l.Seq, l.Head)
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.listPinned(cmd, s, out)
}

func (f *casFlags) listPinned(cmd *cobra.Command, s *cas.Store, out io.Writer) error {
	all, err := s.Pinned(cmd.Context())
	if err != nil {
		return err
	}
	for _, p := range all {
		l, kind := pinnedLine{Pin: p.Name, Digest: p.Tree}, "pin"
		if p.Lease {
			l, kind = pinnedLine{Lease: p.Name, Digest: p.Tree, Collections: p.Collections}, "lease"
		}
		err := f.print(out, l, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s %6s %q\n", p.Tree, kind, p.Name)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func casDiff(f *casFlags) *cobra.Command {
	return &cobra.Command{
		Use: "diff OLD NEW", Short: "List what differs between two trees",
		Long:    "List what was created, modified or deleted from one tree to another. With --json each line is one object.",
		Example: "  runnerd cas diff sha256:... cli:/home/me/project --store S", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				var trees [2]cas.Digest
				for i := range trees {
					var err error
					if trees[i], err = resolveTree(cmd.Context(), s, args[i]); err != nil {
						return err
					}
				}
				out := bufio.NewWriter(cmd.OutOrStdout())
				enc := json.NewEncoder(out)
				err := s.Diff(cmd.Context(), trees[0], trees[1], func(c cas.Change) error {
					x := c.New
					if x == nil {
						x = c.Old
					}
					l := lineOf(c.Path, x)
					l.Change = c.Kind.String()
					if f.json {
						return enc.Encode(l)
					}
					_, err := fmt.Fprintf(out, "%-8s %q\n", l.Change, l.Path)
					return err
				})
				if err != nil {
					return err
				}
				return out.Flush()
			})
		},
	}
}
