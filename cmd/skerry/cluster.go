package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Show and change the cluster of coordinators (needs an admin token)", Example: "  skerry cluster status"}
	c.AddCommand(a.clusterStatus(), a.clusterMembers(), a.clusterRemove(), a.clusterTransfer(), a.clusterSnapshot(), a.clusterRestore(),
		a.clusterJoinToken(), a.clusterDeny(), a.clusterCA(), a.clusterRotateCA())
	return group(c)
}

func (a *app) clusterStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show who leads, how healthy the cluster is and its coordinators", Example: "  skerry cluster status --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.cluster.GetClusterStatus(cmd.Context(), connect.NewRequest(&skerryv1.GetClusterStatusRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			return a.printStatus(res.Msg)
		},
	}
}

func (a *app) printStatus(s *skerryv1.GetClusterStatusResponse) error {
	health := "healthy"
	if !s.Healthy {
		health = "NOT HEALTHY"
	}
	if _, err := fmt.Fprintf(a.stdout, "cluster %s is %s and bears the loss of %d voters\nleader %s, term %d, applied %d, command version %d\n\n",
		s.ClusterId, health, s.FailureTolerance, oneLine(s.Leader), s.Term, s.AppliedIndex, s.CommandVersion); err != nil {
		return err
	}
	return a.printMembers(s.Members)
}

func (a *app) printMembers(members []*skerryv1.ClusterMember) error {
	rows := [][]string{{"NAME", "ROLE", "HEALTHY", "CONTACT", "INDEX", "VERSION", "COMMANDS", "RAFT", "API"}}
	for _, m := range members {
		contact := "-"
		if m.LastContactMs != nil {
			contact = (time.Duration(m.GetLastContactMs()) * time.Millisecond).String()
		}
		rows = append(rows, []string{m.Name, m.Role, fmt.Sprint(m.Healthy), contact, fmt.Sprint(m.LastIndex), orDash(m.Version),
			fmt.Sprint(m.CommandVersion), m.Address, orDash(m.Endpoint)})
	}
	return a.table(rows)
}

func (a *app) clusterMembers() *cobra.Command {
	return &cobra.Command{
		Use: "members", Short: "List the coordinators", Example: "  skerry cluster members", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.cluster.ListMembers(cmd.Context(), connect.NewRequest(&skerryv1.ListMembersRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			return a.printMembers(res.Msg.Members)
		},
	}
}

func (a *app) clusterRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Take a coordinator out of the cluster for ever", Args: cobra.ExactArgs(1),
		Long: "Take a coordinator out of the cluster for ever, whether it runs or is lost. It is refused\n" +
			"when too few of those that stay are healthy. One that runs stops; to let it join again,\nempty its data_dir and give it a new join token.",
		Example: "  skerry cluster remove coordinator-3",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := removeMember(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s removed\n", oneLine(args[0]))
			return err
		},
	}
}

// removeMember repeats the call when leadership moves, as it does when the leader
// itself is to be removed.
func removeMember(ctx context.Context, c *clients, name string) (*connect.Response[skerryv1.RemoveMemberResponse], error) {
	const attempts, between = 5, 500 * time.Millisecond
	for i := 1; ; i++ {
		res, err := c.cluster.RemoveMember(ctx, connect.NewRequest(&skerryv1.RemoveMemberRequest{Name: name}))
		if problem.Of(err).GetReason() != problem.NotLeader || i == attempts {
			return res, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(between):
		}
	}
}

func (a *app) clusterTransfer() *cobra.Command {
	return &cobra.Command{
		Use: "transfer-leadership [NAME]", Short: "Let another coordinator lead", Args: cobra.MaximumNArgs(1),
		Example: "  skerry cluster transfer-leadership coordinator-2",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req := &skerryv1.TransferLeadershipRequest{}
			if len(args) > 0 {
				req.Name = args[0]
			}
			res, err := c.cluster.TransferLeadership(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s leads\n", oneLine(res.Msg.Leader))
			return err
		},
	}
}
