package main

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const followWaitMS = 30_000

func (a *app) inboxCommand() *cobra.Command {
	var follow, keep bool
	req := &skerryv1.ReadInboxRequest{}
	c := &cobra.Command{
		Use: "inbox", Short: "Read what the agent should know: ended executions, reminders, ended transfers", Args: cobra.NoArgs,
		Long:    "What is printed is acknowledged, so that it comes once, unless --keep is given. With --json each page is one line.",
		Example: "  skerry inbox\n  skerry inbox --follow\n  skerry inbox --keep --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			return a.readInbox(cmd.Context(), c, req, follow, keep)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until interrupted")
	c.Flags().BoolVar(&keep, "keep", false, "acknowledge nothing")
	return c
}

func (a *app) readInbox(ctx context.Context, c *clients, req *skerryv1.ReadInboxRequest, follow, keep bool) error {
	if keep && follow {
		return a.watchInbox(ctx, c)
	}
	for {
		res, err := c.inbox.ReadInbox(ctx, connect.NewRequest(req))
		if err != nil {
			return stopped(ctx, err)
		}
		page := res.Msg
		if len(page.Entries) > 0 || !follow {
			if err := a.printInbox(page, page.Entries, page.Dropped); err != nil {
				return err
			}
		}
		if keep {
			return nil
		}
		req.After, req.WaitMs = page.NextCursor, 0
		if page.More {
			continue
		}
		if !follow {
			// Acknowledges the last page; what has come meanwhile stays.
			_, err := c.inbox.ReadInbox(ctx, connect.NewRequest(&skerryv1.ReadInboxRequest{After: req.After, Limit: 1}))
			return err
		}
		req.WaitMs = followWaitMS
	}
}

func (a *app) watchInbox(ctx context.Context, c *clients) error {
	stream, err := c.inbox.WatchInbox(ctx, connect.NewRequest(&skerryv1.WatchInboxRequest{}))
	if err != nil {
		return stopped(ctx, err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if len(stream.Msg().Entries) == 0 {
			continue
		}
		if err := a.printInbox(stream.Msg(), stream.Msg().Entries, stream.Msg().Dropped); err != nil {
			return err
		}
	}
	return stopped(ctx, stream.Err())
}

// stopped is no error when the user ended what would go on for ever.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // stopped by a signal
	}
	return err
}

func (a *app) printInbox(page any, entries []*skerryv1.InboxEntry, dropped uint64) error {
	if a.json {
		return a.printJSON(page)
	}
	if dropped > 0 {
		_, _ = fmt.Fprintf(a.stderr, "skerry: %d entries were dropped unread, ever: the inbox keeps 1000\n", dropped)
	}
	for _, e := range entries {
		line := fmt.Sprintf("%s  %s  %s  %s", stamp(e.Time), e.Kind, e.Id, e.Text)
		if _, err := fmt.Fprintln(a.stdout, oneLine(line)); err != nil {
			return err
		}
	}
	return nil
}
