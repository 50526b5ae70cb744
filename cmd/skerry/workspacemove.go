package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) workspaceReplicate() *cobra.Command {
	req := &skerryv1.SetReplicationRequest{}
	var every time.Duration
	c := &cobra.Command{
		Use: "replicate WORKSPACE", Short: "Say when a workspace's snapshots are copied to another runner",
		Example: "  skerry workspace replicate ws_01... --policy on_commit\n  skerry workspace replicate ws_01... --every 10m --to node18", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("every") {
				if every < time.Second || every/time.Second > math.MaxUint32 {
					return usage(cmd, fmt.Errorf("--every %s is out of range; use 10s to 168h", every))
				}
				if req.Policy != "" && req.Policy != skerryv1.ReplicateInterval {
					return usage(cmd, errors.New("--every goes with --policy interval alone"))
				}
				req.Policy, req.IntervalS = skerryv1.ReplicateInterval, uint32(every/time.Second)
			}
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace = args[0]
			res, err := c.workspaces.SetReplication(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			r := res.Msg.GetWorkspace().GetReplication()
			_, err = fmt.Fprintf(a.stdout, "%s: policy %s, replica %s of commit %d\n", args[0], r.GetPolicy(), orDash(r.GetRunner()), r.GetSeq())
			return err
		},
	}
	c.Flags().StringVar(&req.Policy, "policy", "", "none, on_commit or interval (default: as the coordinators are configured)")
	c.Flags().DurationVar(&every, "every", 0, "at most so old (policy interval)")
	c.Flags().StringVar(&req.Target, "to", "", "the runner that gets the replica (default: chosen)")
	choices(c, "policy", skerryv1.ReplicateNone, skerryv1.ReplicateOnCommit, skerryv1.ReplicateInterval)
	return c
}

func (a *app) workspaceReassign() *cobra.Command {
	req := &skerryv1.ReassignWorkspaceRequest{}
	c := &cobra.Command{
		Use: "reassign WORKSPACE", Short: "Give a workspace to another runner, from its last replica (needs an admin token)",
		Long:    "What the old runner has is kept as a branch when it returns. Without --accept-loss nothing is done while it has commits that the replica lacks.",
		Example: "  skerry workspace reassign ws_01...\n  skerry workspace reassign ws_01... --to node18 --accept-loss", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace = args[0]
			res, err := c.workspaces.ReassignWorkspace(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			w, b := res.Msg.GetWorkspace(), res.Msg.GetBranch()
			_, err = fmt.Fprintf(a.stdout, "%s is on %s under epoch %d; what %s has is branch %s\n", w.Id, w.Runner, w.Epoch, b.Runner, b.Id)
			return err
		},
	}
	c.Flags().StringVar(&req.To, "to", "", "the new runner (default: the one with the replica, else chosen)")
	c.Flags().BoolVar(&req.AcceptLoss, "accept-loss", false, "go on without commits that only the old runner has")
	return c
}

func (a *app) workspaceBranches() *cobra.Command {
	req := &skerryv1.ListBranchesRequest{}
	c := &cobra.Command{
		Use: "branches [WORKSPACE]", Short: "List what runners kept of workspaces that went on elsewhere",
		Example: "  skerry workspace branches\n  skerry transfer start ws_01...:results ws_01... --branch br_01...", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				req.Workspace = args[0]
			}
			res, err := c.workspaces.ListBranches(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "WORKSPACE", "RUNNER", "STATE", "EPOCH", "COMMITS", "HEAD", "SINCE"}}
			for _, b := range res.Msg.Branches {
				rows = append(rows, []string{b.Id, b.Workspace, b.Runner, b.State, fmt.Sprint(b.Epoch), fmt.Sprint(b.GetHead().GetSeq()), short(b.GetHead().GetDigest()), stamp(b.Created)})
			}
			return a.table(rows)
		},
	}
	return c
}
