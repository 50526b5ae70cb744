package main

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) workspaceCommand() *cobra.Command {
	var runner, id, branch string
	of := func() *skerryv1.WorkspaceSelector {
		return &skerryv1.WorkspaceSelector{Runner: runner, Id: id, Branch: branch}
	}
	c := &cobra.Command{Use: "workspace", Short: "Show workspaces, their history and what changed", Example: "  skerry workspace history"}
	c.PersistentFlags().StringVar(&runner, "runner", "", "the workspace on this runner (default: the one that the agent uses)")
	c.PersistentFlags().StringVar(&id, "workspace", "", "the workspace with this id")
	c.PersistentFlags().StringVar(&branch, "branch", "", "this branch of a workspace, for reading")
	c.AddCommand(a.workspaceList(), a.workspaceHistory(of), a.workspaceDiff(of), a.workspaceRestore(of), a.workspaceRepair(of),
		a.workspaceReplicate(), a.workspaceReassign(), a.workspaceBranches())
	return group(c)
}

func (a *app) workspaceList() *cobra.Command {
	req := &skerryv1.ListWorkspacesRequest{}
	c := &cobra.Command{
		Use: "list", Short: "List the agent's workspaces, or with --all everybody's (needs an admin token)", Args: cobra.NoArgs,
		Example: "  skerry workspace list --json\n  skerry workspace list --all --runner node17",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := listWorkspaces(cmd.Context(), c, req)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			rows := [][]string{{"ID", "RUNNER", "STATE", "EPOCH", "COMMITS", "HEAD"}}
			if req.All {
				rows[0] = append(rows[0], "AGENT")
			}
			for i, w := range res.Workspaces {
				rows = append(rows, []string{w.Id, w.Runner, w.State, fmt.Sprint(w.Epoch), fmt.Sprint(w.GetHead().GetSeq()), short(w.GetHead().GetDigest())})
				if req.All {
					rows[i+1] = append(rows[i+1], w.Agent)
				}
			}
			return a.table(rows)
		},
	}
	c.Flags().BoolVar(&req.All, "all", false, "of all agents, as they were last reported")
	c.Flags().StringVar(&req.Runner, "runner", "", "only those on this runner")
	return c
}

// listWorkspaces gathers all pages.
func listWorkspaces(ctx context.Context, c *clients, req *skerryv1.ListWorkspacesRequest) (*skerryv1.ListWorkspacesResponse, error) {
	out := &skerryv1.ListWorkspacesResponse{}
	for {
		res, err := c.workspaces.ListWorkspaces(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		out.Workspaces = append(out.Workspaces, res.Msg.Workspaces...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out, nil
		}
	}
}

func (a *app) workspaceHistory(of selector) *cobra.Command {
	req := &skerryv1.HistoryRequest{}
	c := &cobra.Command{
		Use: "history", Short: "List snapshots, newest first, and what made them", Example: "  skerry workspace history --limit 5", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace = of()
			res, err := c.workspaces.History(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"SEQ", "TIME", "SNAPSHOT", "FILES", "BYTES", "MADE BY"}}
			for _, r := range res.Msg.Revisions {
				rows = append(rows, []string{fmt.Sprint(r.Snapshot.Seq), stamp(r.Time), short(r.Snapshot.Digest), fmt.Sprint(r.Snapshot.Files),
					fmt.Sprint(r.Snapshot.Bytes), r.SourceKind + " " + r.Source})
			}
			if err := a.table(rows); err != nil || res.Msg.NextPageToken == "" {
				return err
			}
			_, err = fmt.Fprintf(a.stderr, "more: --page %s\n", res.Msg.NextPageToken)
			return err
		},
	}
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many (default 50, at most 1000)")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue a list")
	return c
}

func (a *app) workspaceDiff(of selector) *cobra.Command {
	req := &skerryv1.DiffRequest{}
	c := &cobra.Command{
		Use: "diff [FROM [TO]]", Short: "List files that differ between two snapshots",
		Long:    "Without arguments: what the last snapshot changed. With FROM alone: what changed from there to the last snapshot.",
		Example: "  skerry workspace diff\n  skerry workspace diff sha256:1f0c... sha256:9ab2...", Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace = of()
			if len(args) > 0 {
				req.From = args[0]
			}
			if len(args) > 1 {
				req.To = args[1]
			}
			res, err := c.workspaces.Diff(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			printChanges(a.stdout, res.Msg.Changes)
			return nil
		},
	}
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many paths (default 1000, at most 10000)")
	return c
}

func (a *app) workspaceRestore(of selector) *cobra.Command {
	req := &skerryv1.RestoreWorkspaceRequest{}
	c := &cobra.Command{
		Use: "restore SNAPSHOT", Short: "Bring the workspace, or one path of it, back to an earlier snapshot",
		Long:    "What is replaced stays in the history: restore the snapshot before to undo it.",
		Example: "  skerry workspace restore sha256:1f0c...\n  skerry workspace restore sha256:1f0c... --path results/table.csv", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("path") && req.Path == "" {
				return usage(cmd, errors.New("--path is empty; leave it out to restore the whole workspace"))
			}
			req.Workspace, req.Snapshot = of(), args[0]
			res, err := c.workspaces.RestoreWorkspace(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			printChanges(a.stdout, res.Msg.Changes)
			return nil
		},
	}
	c.Flags().StringVar(&req.Path, "path", "", "only this file, symlink or directory")
	return c
}

func (a *app) workspaceRepair(of selector) *cobra.Command {
	return &cobra.Command{
		Use: "repair", Short: "Commit a workspace that refuses writes since a commit failed, and open it again",
		Example: "  skerry workspace repair", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.workspaces.RepairWorkspace(cmd.Context(), connect.NewRequest(&skerryv1.RepairWorkspaceRequest{Workspace: of()}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s is %s\n", res.Msg.Workspace.Id, res.Msg.Workspace.State)
			return err
		},
	}
}
