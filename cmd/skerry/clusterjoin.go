package main

import (
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) clusterJoinToken() *cobra.Command {
	req := &skerryv1.CreateJoinTokenRequest{}
	var expires time.Duration
	c := &cobra.Command{
		Use: "join-token", Short: "Make a token by which one runner or coordinator joins, once", Args: cobra.NoArgs,
		Long: "The token is printed once, alone on its line. It is good for one member; with --name for that one only, which may then take the name over\n" +
			"from a member that has it. Write it to the file that join_token_file names.",
		Example: "  skerry cluster join-token --runner --name node17 > join.token\n  skerry cluster join-token --coordinator --name head2 --expires 15m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.ExpiresS = uint64(expires / time.Second)
			res, err := c.joins.CreateJoinToken(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			fmt.Fprintf(a.stderr, "%s is good until %s\n", res.Msg.Token.Id, res.Msg.Token.Expires.AsTime().Local().Format(time.DateTime))
			_, err = fmt.Fprintln(a.stdout, res.Msg.Secret)
			return err
		},
	}
	var runner, coordinator bool
	c.Flags().BoolVar(&runner, "runner", false, "for a runner")
	c.Flags().BoolVar(&coordinator, "coordinator", false, "for a coordinator")
	c.Flags().StringVar(&req.Name, "name", "", "only a member of this name may use it")
	c.Flags().DurationVar(&expires, "expires", time.Hour, "how long it is good, at most 168h")
	c.MarkFlagsOneRequired("runner", "coordinator")
	c.MarkFlagsMutuallyExclusive("runner", "coordinator")
	c.PreRun = func(*cobra.Command, []string) {
		req.Role = "runner"
		if coordinator {
			req.Role = "coordinator"
		}
	}
	c.AddCommand(a.joinTokenList(), a.joinTokenRevoke())
	return c
}

func (a *app) joinTokenList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List join tokens that have not expired", Example: "  skerry cluster join-token list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.joins.ListJoinTokens(cmd.Context(), connect.NewRequest(&skerryv1.ListJoinTokensRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "ROLE", "NAME", "STATE", "EXPIRES"}}
			for _, t := range res.Msg.Tokens {
				rows = append(rows, []string{t.Id, t.Role, orDash(t.Name), joinTokenState(t), t.Expires.AsTime().Local().Format(time.DateTime)})
			}
			return a.table(rows)
		},
	}
}

func joinTokenState(t *skerryv1.JoinToken) string {
	switch {
	case t.Revoked != nil:
		return "revoked"
	case t.Used != nil:
		return "used by " + oneLine(t.UsedBy)
	}
	return "good"
}

func (a *app) joinTokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke TOKEN_ID", Short: "Make a join token useless", Example: "  skerry cluster join-token revoke jt_01...", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.joins.RevokeJoinToken(cmd.Context(), connect.NewRequest(&skerryv1.RevokeJoinTokenRequest{TokenId: args[0]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintln(a.stdout, res.Msg.Token.Id, "revoked")
			return err
		},
	}
}

func (a *app) clusterDeny() *cobra.Command {
	return &cobra.Command{
		Use: "deny ROLE NAME", Short: "Make every certificate that a runner or coordinator has worthless", Args: cobra.ExactArgs(2),
		Long:    "It takes effect within seconds and for ever; with a new join token the member may come back. To take a coordinator out of the cluster use\nskerry cluster remove.",
		Example: "  skerry cluster deny runner node17", ValidArgs: []string{"runner", "coordinator"},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.joins.DenyMember(cmd.Context(), connect.NewRequest(&skerryv1.DenyMemberRequest{Role: args[0], Name: args[1]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "certificates of %s %s are denied\n", oneLine(res.Msg.Holder.Role), oneLine(res.Msg.Holder.Name))
			return err
		},
	}
}

func (a *app) clusterRotateCA() *cobra.Command {
	req := &skerryv1.RotateAuthorityRequest{}
	c := &cobra.Command{
		Use: "rotate-ca", Short: "Replace the cluster's certificate authority, step by step", Args: cobra.NoArgs,
		Long: "All members learn to trust the new authority; it signs; the old one goes. Each step follows by itself once every member with a good certificate\n" +
			"has followed; a member that is away for long holds it up until its certificate expires, at most a day, unless --force. Run it again to see how far\n" +
			"it is. Agents that trust the authority by --ca-file need the new one, which --json prints.",
		Example: "  skerry cluster rotate-ca",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.joins.RotateAuthority(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			return a.printAuthority(res.Msg, res.Msg.Authority)
		},
	}
	c.Flags().BoolVar(&req.Force, "force", false, "take the next step though members have not followed: they must join anew")
	return c
}

func (a *app) clusterCA() *cobra.Command {
	return &cobra.Command{
		Use: "ca", Short: "Show the cluster's certificate authority and who has certificates", Example: "  skerry cluster ca", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.joins.GetAuthority(cmd.Context(), connect.NewRequest(&skerryv1.GetAuthorityRequest{}))
			if err != nil {
				return err
			}
			return a.printAuthority(res.Msg, res.Msg.Authority)
		},
	}
}

func (a *app) printAuthority(msg any, authority *skerryv1.Authority) error {
	if a.json {
		return a.printJSON(msg)
	}
	if _, err := fmt.Fprintf(a.stdout, "generation %d, %s\n\n", authority.Generation, authority.Phase); err != nil {
		return err
	}
	rows := [][]string{{"ROLE", "NAME", "STATE", "KNOWS", "EXPIRES"}}
	for _, h := range authority.Holders {
		state := "good"
		if h.Denied != nil && !h.Issued.AsTime().After(h.Denied.AsTime()) {
			state = "denied"
		}
		rows = append(rows, []string{h.Role, h.Name, state, fmt.Sprint(h.Generation), h.Expires.AsTime().Local().Format(time.DateTime)})
	}
	return a.table(rows)
}
