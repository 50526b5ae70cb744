package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) runnerCommand() *cobra.Command {
	c := &cobra.Command{Use: "runner", Short: "Show runners, and decide what they get", Example: "  skerry runner list"}
	c.AddCommand(a.runnerList(), a.runnerExplain(), a.runnerCordon(), a.runnerUncordon(), a.runnerDrain(), a.runnerRemove())
	return group(c)
}

func (a *app) runnerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List runners, their state and load", Example: "  skerry runner list --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.ListRunners(cmd.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"NAME", "STATE", "SCHEDULE", "TIER", "VERSION", "RUNNING", "QUEUED", "SLOTS", "NOTE"}}
			for _, r := range res.Msg.Runners {
				rows = append(rows, []string{r.Name, r.State, orDash(r.Schedule), r.Tier, r.Version, fmt.Sprint(r.Running), fmt.Sprint(r.Queued), fmt.Sprint(r.Slots), orDash(runnerNote(r))})
			}
			return a.table(rows)
		},
	}
}

// runnerNote is what a person should know of a runner in a few words.
func runnerNote(r *skerryv1.Runner) string {
	var notes []string
	for _, d := range r.GetDevices() {
		notes = append(notes, fmt.Sprintf("%s: %d of %d free", d.GetKind(), d.GetFree(), d.GetCount()))
	}
	switch d := r.GetDrain(); {
	case d == nil:
	case d.GetEnded() != nil:
		notes = append(notes, d.GetDetail())
	default:
		notes = append(notes, fmt.Sprintf("%d executions until %s", d.GetRemaining(), stamp(d.GetDeadline())))
	}
	for _, text := range []string{r.GetScheduleReason(), r.GetVersionSkew()} {
		if text != "" {
			notes = append(notes, text)
		}
	}
	return strings.Join(notes, "; ")
}

func (a *app) runnerExplain() *cobra.Command {
	req := &skerryv1.ExplainPlacementRequest{}
	c := &cobra.Command{
		Use: "explain", Short: "Say which runner a new workspace would get, and why not the others", Args: cobra.NoArgs,
		Example: "  skerry runner explain\n  skerry runner explain --label arch=arm64 --label 'zone in (a, b)' --npu 2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.ExplainPlacement(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"RUNNER", "VERDICT", "WHY"}}
			if current := res.Msg.GetCurrent(); current != "" {
				rows = append(rows, []string{current, "in use", "calls without a runner go there"})
			}
			for i, candidate := range res.Msg.Candidates {
				rows = append(rows, []string{candidate.Runner, fmt.Sprintf("choice %d", i+1), strings.Join(candidate.Reasons, "; ")})
			}
			for _, r := range res.Msg.Rejected {
				rows = append(rows, []string{r.Runner, r.Reason, r.Message})
			}
			return a.table(rows)
		},
	}
	c.Flags().StringVar(&req.Agent, "agent", "", "for this agent (default: the token's)")
	c.Flags().StringArrayVar(&req.Selector, "label", nil, `condition on labels: k=v, k!=v or "k in (v, w)" (repeatable)`)
	c.Flags().StringVar(&req.Tier, "tier", "", "least sandbox tier")
	c.Flags().Uint32Var(&req.Npu, "npu", 0, "free NPUs needed")
	c.Flags().StringVar(&req.Policy, "policy", "", "spread or pack (default: the cluster's)")
	choices(c, "policy", "spread", "pack")
	return c
}

func (a *app) runnerCordon() *cobra.Command {
	req := &skerryv1.CordonRunnerRequest{}
	c := &cobra.Command{
		Use: "cordon NAME", Short: "Keep new workspaces away from a runner; what is there goes on", Args: cobra.ExactArgs(1),
		Example: "  skerry runner cordon node17 --reason 'disk is failing'",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Runner = args[0]
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.CordonRunner(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			return a.printRunner(res.Msg, res.Msg.Runner)
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "for people")
	return c
}

func (a *app) runnerUncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NAME", Short: "Let a runner take everything again, also after a drain", Args: cobra.ExactArgs(1),
		Example: "  skerry runner uncordon node17",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.UncordonRunner(cmd.Context(), connect.NewRequest(&skerryv1.UncordonRunnerRequest{Runner: args[0]}))
			if err != nil {
				return err
			}
			return a.printRunner(res.Msg, res.Msg.Runner)
		},
	}
}

func (a *app) runnerDrain() *cobra.Command {
	var deadline time.Duration
	var background bool
	req := &skerryv1.DrainRunnerRequest{}
	c := &cobra.Command{
		Use: "drain NAME", Short: "Empty a runner: nothing new, wait for what runs, then cancel it", Args: cobra.ExactArgs(1),
		Long: "A drained runner gets no new workspaces and executions. What runs there may end by itself until the deadline; then it is\n" +
			"cancelled, or left with --leave-running. The drain goes on when this command is interrupted; skerry runner list shows it.",
		Example: "  skerry runner drain node17 --deadline 30m --reason 'kernel update'\n  skerry runner drain node17 --background",
		RunE: func(cmd *cobra.Command, args []string) error {
			if deadline < 0 {
				return fmt.Errorf("deadline: %s is negative", deadline)
			}
			req.Runner, req.DeadlineS = args[0], proto.Uint32(uint32(min(deadline/time.Second, 1<<31)))
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.DrainRunner(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if background {
				return a.printRunner(res.Msg, res.Msg.Runner)
			}
			return a.awaitDrain(cmd.Context(), c, args[0])
		},
	}
	c.Flags().DurationVar(&deadline, "deadline", time.Hour, "how long to wait for what runs; at most 168h")
	c.Flags().BoolVar(&req.LeaveRunning, "leave-running", false, "at the deadline leave what runs alone")
	c.Flags().BoolVar(&background, "background", false, "do not wait for the end of the drain")
	c.Flags().StringVar(&req.Reason, "reason", "", "for people")
	return c
}

// awaitDrain looks at the runner until it is drained, or was let in again.
func (a *app) awaitDrain(ctx context.Context, c *clients, name string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		res, err := c.runners.ListRunners(ctx, connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		if err != nil {
			return err
		}
		var found *skerryv1.Runner
		for _, r := range res.Msg.Runners {
			if r.Name == name {
				found = r
			}
		}
		if found == nil {
			return fmt.Errorf("runner %q was removed meanwhile", name)
		}
		if found.GetSchedule() != skerryv1.RunnerDraining {
			return a.printRunner(&skerryv1.DrainRunnerResponse{Runner: found}, found)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("interrupted; the drain goes on: %w", ctx.Err())
		}
	}
}

func (a *app) runnerRemove() *cobra.Command {
	req := &skerryv1.RemoveRunnerRequest{}
	c := &cobra.Command{
		Use: "remove NAME", Short: "Forget a runner that is down or drained, and its tokens", Args: cobra.ExactArgs(1),
		Long: "It is refused while the runner is up and not drained, or has the only copy of a workspace's latest state; --force does it all the\n" +
			"same. Its workspaces are kept as lost until they are assigned to another runner. The name may come again with a new token.",
		Example: "  skerry runner remove node17",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Runner = args[0]
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.runners.RemoveRunner(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			if _, err := fmt.Fprintf(a.stdout, "%s removed\n", args[0]); err != nil {
				return err
			}
			for _, ws := range res.Msg.LostWorkspaces {
				if _, err := fmt.Fprintf(a.stdout, "lost workspace %s\n", ws); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&req.Force, "force", false, "also while it is up, or has the only copy of something")
	return c
}

// printRunner tells what became of a runner.
func (a *app) printRunner(answer proto.Message, r *skerryv1.Runner) error {
	if a.json {
		return a.printJSON(answer)
	}
	text := r.GetName() + " takes everything"
	if r.GetSchedule() != "" {
		text = r.GetName() + " is " + r.GetSchedule()
	}
	if note := runnerNote(r); note != "" {
		text += ": " + note
	}
	_, err := fmt.Fprintln(a.stdout, oneLine(text))
	return err
}
