package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) transferCommand() *cobra.Command {
	c := &cobra.Command{Use: "transfer", Short: "Copy files between workspaces, from committed snapshots",
		Example: "  skerry transfer workspaces\n  skerry transfer start ws_01...:results ws_01... --wait"}
	c.AddCommand(a.transferStart(), a.transferList(), a.transferStatus(), a.transferCancel(), a.transferWorkspaces())
	return group(c)
}

func (a *app) transferStart() *cobra.Command {
	req := &skerryv1.StartTransferRequest{}
	var overwrite, wait bool
	c := &cobra.Command{
		Use: "start SOURCE_WS:PATH... TARGET_WS[:PATH]", Short: "Start a transfer",
		Long: "Each PATH is a file, symlink or directory of the source workspace. It goes to the same path of the target, or to PATH of the target " +
			"(of several: below it, under their last names). A path SOURCE=TARGET names both.",
		Example: "  skerry transfer start ws_01a...:data ws_01b...\n  skerry transfer start ws_01a...:a.csv ws_01a...:b.csv ws_01b...:inputs\n  skerry transfer start ws_01a...:old.csv=new.csv ws_01b... --overwrite --wait",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mapPaths(req, args); err != nil {
				return usage(cmd, err)
			}
			if overwrite {
				req.Conflict = skerryv1.ConflictOverwrite
			}
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.transfers.StartTransfer(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if wait {
				return a.awaitTransfer(cmd.Context(), c, res.Msg.Transfer.Id)
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintln(a.stdout, res.Msg.Transfer.Id)
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&overwrite, "overwrite", false, "replace different files that lie at the targets (default: those fail)")
	f.BoolVar(&wait, "wait", false, "wait for the end; the exit code is 0 only if all files were copied")
	f.StringVar(&req.SourceSnapshot, "snapshot", "", "copy from this snapshot of the source's history (default: the latest)")
	f.StringVar(&req.SourceBranch, "branch", "", "copy from this branch of the source workspace")
	f.StringVar(&req.IdempotencyKey, "key", "", "idempotency key: a repeat with the same key starts nothing new")
	return c
}

// mapPaths reads SOURCE:PATH... TARGET[:PATH].
func mapPaths(req *skerryv1.StartTransferRequest, args []string) error {
	last := len(args) - 1
	target, below, hasPath := strings.Cut(args[last], ":")
	req.Target = target
	for _, arg := range args[:last] {
		source, path, ok := strings.Cut(arg, ":")
		switch {
		case !ok || source == "":
			return fmt.Errorf("%q is not WORKSPACE:PATH", arg)
		case req.Source != "" && req.Source != source:
			return errors.New("all paths must be of one source workspace")
		}
		req.Source = source
		from, to, both := strings.Cut(path, "=")
		switch {
		case both:
		case !hasPath:
			to = from
		case last == 1:
			to = below
		default:
			to = strings.TrimSuffix(below, "/") + from[strings.LastIndex("/"+strings.TrimSuffix(from, "/"), "/"):]
			to = strings.ReplaceAll(to, "//", "/")
		}
		req.Mappings = append(req.Mappings, &skerryv1.TransferMapping{Source: from, Target: to})
	}
	return nil
}

// awaitTransfer waits for the end and shows it; what did not arrive fails the command.
func (a *app) awaitTransfer(ctx context.Context, c *clients, id string) error {
	for {
		res, err := c.transfers.GetTransfer(ctx, connect.NewRequest(&skerryv1.GetTransferRequest{TransferId: id, WaitMs: 20000, FileLimit: 1}))
		if err != nil {
			return err
		}
		if !skerryv1.TransferEnded(res.Msg.Transfer.State) {
			continue
		}
		if err := a.showTransfer(ctx, c, id, skerryv1.StateFailed); err != nil {
			return err
		}
		if res.Msg.Transfer.State != skerryv1.StateCompleted {
			return &exitError{code: 1}
		}
		return nil
	}
}

// showTransfer prints a transfer and those of its files that have an outcome, "" for all.
func (a *app) showTransfer(ctx context.Context, c *clients, id, state string) error {
	res, err := c.transfers.GetTransfer(ctx, connect.NewRequest(&skerryv1.GetTransferRequest{TransferId: id, FileState: state, FileLimit: 1000}))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res.Msg)
	}
	t := res.Msg.Transfer
	if err := a.table([][]string{{"ID", "STATE", "COMPLETED", "FAILED", "CANCELLED", "UNKNOWN", "PENDING", "BYTES", "ROUTE"}, {t.Id, t.State,
		fmt.Sprint(t.GetCounts().GetCompleted()), fmt.Sprint(t.GetCounts().GetFailed()), fmt.Sprint(t.GetCounts().GetCancelled()), fmt.Sprint(t.GetCounts().GetUnknown()),
		fmt.Sprint(t.GetCounts().GetPending() + t.GetCounts().GetCopying()), fmt.Sprintf("%d/%d", t.BytesCompleted, t.Bytes), orDash(t.Route)}}); err != nil {
		return err
	}
	if p := t.GetProblem(); p != nil {
		_, _ = fmt.Fprintf(a.stdout, "%s: %s\n", p.Reason, p.Message)
	}
	rows := [][]string{{"PATH", "STATE", "WHY"}}
	for _, f := range res.Msg.Files {
		rows = append(rows, []string{f.Path, f.State, orDash(f.GetProblem().GetMessage())})
	}
	if len(rows) > 1 {
		if err := a.table(rows); err != nil {
			return err
		}
	}
	switch {
	case res.Msg.NextPageToken != "":
		_, err = fmt.Fprintf(a.stderr, "more files: skerry transfer status %s --page %s\n", id, res.Msg.NextPageToken)
	case res.Msg.FilesUnavailable != "":
		_, err = fmt.Fprintln(a.stderr, "no files are listed: "+res.Msg.FilesUnavailable)
	}
	return err
}

func (a *app) transferList() *cobra.Command {
	req := &skerryv1.ListTransfersRequest{}
	c := &cobra.Command{
		Use: "list", Short: "List transfers, newest first", Example: "  skerry transfer list --state running", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.transfers.ListTransfers(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "STATE", "FROM", "TO", "COMPLETED", "FAILED", "CREATED"}}
			for _, t := range res.Msg.Transfers {
				rows = append(rows, []string{t.Id, t.State, t.GetSource().GetRunner(), t.GetTarget().GetRunner(), fmt.Sprint(t.GetCounts().GetCompleted()),
					fmt.Sprint(t.GetCounts().GetFailed()), stamp(t.Created)})
			}
			if err := a.table(rows); err != nil || res.Msg.NextPageToken == "" {
				return err
			}
			_, err = fmt.Fprintf(a.stderr, "more: --page %s\n", res.Msg.NextPageToken)
			return err
		},
	}
	c.Flags().StringVar(&req.State, "state", "", "only transfers in this state")
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many (default 50, at most 200)")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue a list")
	choices(c, "state", skerryv1.StateQueued, skerryv1.StateRunning, skerryv1.StateCompleted, skerryv1.StatePartial, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown)
	return c
}

func (a *app) transferStatus() *cobra.Command {
	req := &skerryv1.GetTransferRequest{}
	var wait time.Duration
	c := &cobra.Command{
		Use: "status ID", Short: "Show a transfer and what became of its files", Example: "  skerry transfer status tr_01... --files failed", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.TransferId, req.WaitMs = args[0], uint32(wait.Milliseconds())
			if req.WaitMs > 0 || req.PageToken != "" || req.FileLimit > 0 {
				res, err := c.transfers.GetTransfer(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(res.Msg)
				}
				if req.PageToken != "" {
					return a.printFiles(res.Msg)
				}
			}
			return a.showTransfer(cmd.Context(), c, args[0], req.FileState)
		},
	}
	c.Flags().StringVar(&req.FileState, "files", "", "only files with this outcome")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue the list of files")
	c.Flags().Uint32Var(&req.FileLimit, "limit", 0, "files a page (at most 1000)")
	c.Flags().DurationVar(&wait, "wait", 0, "wait so long for the end, at most 30s")
	choices(c, "files", skerryv1.FilePending, skerryv1.FileCopying, skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown)
	return c
}

func (a *app) printFiles(res *skerryv1.GetTransferResponse) error {
	rows := [][]string{{"PATH", "STATE", "WHY"}}
	for _, f := range res.Files {
		rows = append(rows, []string{f.Path, f.State, orDash(f.GetProblem().GetMessage())})
	}
	if err := a.table(rows); err != nil || res.NextPageToken == "" {
		return err
	}
	_, err := fmt.Fprintf(a.stderr, "more: --page %s\n", res.NextPageToken)
	return err
}

func (a *app) transferCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "End a transfer; files that are committed stay", Example: "  skerry transfer cancel tr_01...", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.transfers.CancelTransfer(cmd.Context(), connect.NewRequest(&skerryv1.CancelTransferRequest{TransferId: args[0]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s is %s\n", res.Msg.Transfer.Id, res.Msg.Transfer.State)
			return err
		},
	}
}

func (a *app) transferWorkspaces() *cobra.Command {
	return &cobra.Command{
		Use: "workspaces", Short: "List workspaces that may be source or target", Example: "  skerry transfer workspaces", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.transfers.ListTransferWorkspaces(cmd.Context(), connect.NewRequest(&skerryv1.ListTransferWorkspacesRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "AGENT", "RUNNER", "RUNNER IS", "COMMITS", "SNAPSHOT"}}
			for _, w := range res.Msg.Workspaces {
				rows = append(rows, []string{w.Id, w.Agent, w.Runner, w.RunnerState, fmt.Sprint(w.Seq), short(w.Snapshot)})
			}
			return a.table(rows)
		},
	}
}
