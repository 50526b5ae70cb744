package main

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) agentCommand() *cobra.Command {
	c := &cobra.Command{Use: "agent", Short: "List and archive agents", Example: "  skerry agent list"}
	c.AddCommand(a.agentList(), a.agentArchive())
	return group(c)
}

func (a *app) agentList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List agents: all for an admin, else this one and its descendants", Example: "  skerry agent list --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.agents.ListAgents(cmd.Context(), connect.NewRequest(&skerryv1.ListAgentsRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"NAME", "PROJECT", "PARENT", "RUNNER", "CREATED", "ARCHIVED"}}
			for _, g := range res.Msg.Agents {
				rows = append(rows, []string{g.Name, g.Project, orDash(g.Parent), orDash(g.Runner), stamp(g.Created), stamp(g.Archived)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) agentArchive() *cobra.Command {
	return &cobra.Command{
		Use: "archive NAME", Short: "Revoke an agent's tokens, cancel its timers and empty its inbox, for good (needs an admin token)", Args: cobra.ExactArgs(1),
		Example: "  skerry agent archive alice",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.agents.ArchiveAgent(cmd.Context(), connect.NewRequest(&skerryv1.ArchiveAgentRequest{Agent: args[0]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s archived\n", res.Msg.Agent.Name)
			return err
		},
	}
}
