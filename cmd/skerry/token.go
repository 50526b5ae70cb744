package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Make, list and revoke tokens", Example: "  skerry token create --agent alice --expires 720h"}
	c.AddCommand(a.tokenCreate(), a.tokenList(), a.tokenRevoke())
	return group(c)
}

func (a *app) tokenCreate() *cobra.Command {
	req := &skerryv1.CreateTokenRequest{}
	var agent, runner string
	var admin bool
	var expires time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Make a token; its secret is shown once", Args: cobra.NoArgs,
		Long: "An admin makes any token. An agent makes tokens for itself and for children of it, which are new names or children already;\n" +
			"they are never wider than its own in permissions, runners, network policies and validity, and end with it.",
		Example: "  skerry token create --agent alice --project genomics --expires 720h\n  skerry token create --agent alice --network pypi --network conda\n  skerry token create --agent helper --permission shell --runner-scope 'gpu-*' --expires 2h\n  skerry token create --runner node17",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (agent == "") == (runner == ""):
				return errors.New("give exactly one of --agent and --runner")
			case runner != "":
				req.Role, req.Subject = skerryv1.RoleRunner, runner
			case admin:
				req.Role, req.Subject = skerryv1.RoleAdmin, agent
			default:
				req.Role, req.Subject = skerryv1.RoleAgent, agent
			}
			if expires < 0 || (expires > 0 && expires < time.Second) {
				return errors.New("expires: must be at least 1s")
			}
			req.ExpiresS = uint64(expires / time.Second)
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.tokens.CreateToken(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintln(a.stdout, res.Msg.Secret)
			return err
		},
	}
	c.Flags().StringVar(&agent, "agent", "", "agent that the token is for")
	c.Flags().StringVar(&runner, "runner", "", "runner that the token is for")
	c.Flags().BoolVar(&admin, "admin", false, "the agent's token may also manage tokens")
	c.Flags().StringVar(&req.Project, "project", "", "project of a new agent")
	c.Flags().DurationVar(&expires, "expires", 0, "validity (default: until revoked)")
	c.Flags().StringSliceVar(&req.NetworkPolicies, "network", nil, "network policy that the agent's token may name (repeatable)")
	c.Flags().StringSliceVar(&req.Permissions, "permission", nil, "what the agent's token may do beside files: shell, environments, npu, transfer (repeatable; default: all)")
	c.Flags().StringSliceVar(&req.Runners, "runner-scope", nil, "runner that the agent's token may use, by name or pattern (repeatable; default: all)")
	c.Flags().StringVar(&req.Parent, "parent", "", "agent that a new agent is a child of (for admins)")
	choices(c, "permission", "files", "shell", "environments", "npu", "transfer")
	c.Flags().StringVar(&req.Description, "description", "", "what it is for")
	return c
}

func (a *app) tokenList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List tokens, without their secrets", Example: "  skerry token list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.tokens.ListTokens(cmd.Context(), connect.NewRequest(&skerryv1.ListTokensRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "ROLE", "FOR", "CREATED", "EXPIRES", "REVOKED", "PERMISSIONS", "RUNNERS", "NETWORK", "PARENT", "DESCRIPTION"}}
			for _, t := range res.Msg.Tokens {
				rows = append(rows, []string{t.Id, t.Role, t.Subject, stamp(t.Created), stamp(t.Expires), stamp(t.Revoked),
					orDash(strings.Join(t.Permissions, ",")), orDash(strings.Join(t.Runners, ",")), orDash(strings.Join(t.NetworkPolicies, ",")), orDash(t.Parent), orDash(t.Description)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) tokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "Make a token useless at once", Example: "  skerry token revoke tk_01...", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.tokens.RevokeToken(cmd.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: args[0]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s revoked\n", res.Msg.Token.Id)
			return err
		},
	}
}
