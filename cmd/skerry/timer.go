package main

import (
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (a *app) timerCommand() *cobra.Command {
	c := &cobra.Command{Use: "timer", Short: "Set, list and cancel reminders, which come into the inbox", Example: "  skerry timer create --after 20m 'look at the training'"}
	c.AddCommand(a.timerCreate(), a.timerList(), a.timerCancel())
	return group(c)
}

func (a *app) timerCreate() *cobra.Command {
	req := &skerryv1.CreateTimerRequest{}
	var after time.Duration
	c := &cobra.Command{
		Use: "create MESSAGE", Short: "Set a reminder", Args: cobra.ExactArgs(1),
		Example: "  skerry timer create --after 20m 'look at the training'\n  skerry timer create --at 2030-01-31T08:00:00+01:00 --execution ex_01... 'still running?'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if after < 0 || (after > 0 && after < time.Millisecond) {
				return errors.New("after: must be at least 1ms")
			}
			req.Message, req.AfterMs = args[0], uint64(after/time.Millisecond)
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.timers.CreateTimer(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s due %s\n", res.Msg.Timer.Id, stamp(res.Msg.Timer.Due))
			return err
		},
	}
	c.Flags().DurationVar(&after, "after", 0, "time from now")
	c.Flags().StringVar(&req.At, "at", "", "time with zone, such as 2030-01-31T08:00:00+01:00")
	c.Flags().StringVar(&req.ExecutionId, "execution", "", "execution whose end cancels the timer")
	return c
}

func (a *app) timerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List pending reminders, first due first", Example: "  skerry timer list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.timers.ListTimers(cmd.Context(), connect.NewRequest(&skerryv1.ListTimersRequest{}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "DUE", "EXECUTION", "MESSAGE"}}
			for _, t := range res.Msg.Timers {
				rows = append(rows, []string{t.Id, stamp(t.Due), orDash(t.ExecutionId), t.Message})
			}
			return a.table(rows)
		},
	}
}

func (a *app) timerCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Cancel a pending reminder", Example: "  skerry timer cancel tm_01...", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.timers.CancelTimer(cmd.Context(), connect.NewRequest(&skerryv1.CancelTimerRequest{TimerId: args[0]}))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			_, err = fmt.Fprintf(a.stdout, "%s cancelled\n", res.Msg.Timer.Id)
			return err
		},
	}
}
