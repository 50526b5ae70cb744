package mcp

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	maxAfterMS = 366 * 24 * 60 * 60 * 1000
	// listedTimers and listedMessage bound a list, which may have 1000 long ones.
	listedTimers  = 100
	listedMessage = 200
)

func timerCreate(c Timers) tool {
	return tool{
		name: "timer_create", title: "Set a reminder",
		description: "Have a message put into your inbox once, at a time. Give exactly one of after_ms and at. " +
			"With execution_id the end of that execution cancels the timer.",
		params: []param{
			{name: "after_ms", kind: number, least: 1, most: maxAfterMS, doc: "Milliseconds from now."},
			{name: "at", kind: text, doc: "Time with zone, such as 2030-01-31T08:00:00+01:00; at most 366 days ahead."},
			{name: "message", kind: text, required: true, most: 4000, doc: "What to be reminded of, at most 4000 characters."},
			executionID(false, "An execution of yours that has not ended."),
		},
		hints: hints{destructive: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			res, err := c.CreateTimer(ctx, connect.NewRequest(&skerryv1.CreateTimerRequest{AfterMs: uint64(get[int64](a, "after_ms")),
				At: get[string](a, "at"), Message: get[string](a, "message"), ExecutionId: get[string](a, "execution_id")}))
			if err != nil {
				return nil, err
			}
			return message(res.Msg.Timer, "set: "+timerText(res.Msg.Timer))
		},
	}
}

func timerList(c Timers) tool {
	return tool{
		name: "timer_list", title: "List reminders",
		description: "List your pending timers, first due first.",
		hints:       hints{readOnly: true, idempotent: true},
		call: func(ctx context.Context, _ arguments) (*result, error) {
			res, err := c.ListTimers(ctx, connect.NewRequest(&skerryv1.ListTimersRequest{}))
			if err != nil {
				return nil, err
			}
			all := res.Msg.Timers
			out := &skerryv1.ListTimersResponse{Timers: all[:min(len(all), listedTimers)]}
			var rows strings.Builder
			for _, t := range out.Timers {
				t.Message = clipText(t.Message, listedMessage)
				rows.WriteString(timerText(t) + "\n")
			}
			head := fmt.Sprintf("%d pending timers\n", len(all))
			if len(all) > listedTimers {
				head = fmt.Sprintf("the first %d of %d pending timers\n", listedTimers, len(all))
			}
			return message(out, head+rows.String())
		},
	}
}

func timerCancel(c Timers) tool {
	return tool{
		name: "timer_cancel", title: "Cancel a reminder",
		description: "Cancel a pending timer. One that has fired or was cancelled is not found.",
		params:      []param{{name: "timer_id", kind: text, required: true, doc: "The timer to cancel."}},
		hints:       hints{destructive: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			res, err := c.CancelTimer(ctx, connect.NewRequest(&skerryv1.CancelTimerRequest{TimerId: get[string](a, "timer_id")}))
			if err != nil {
				return nil, err
			}
			return message(res.Msg.Timer, "cancelled: "+timerText(res.Msg.Timer))
		},
	}
}

// timerText is a timer on one line.
func timerText(t *skerryv1.Timer) string {
	out := fmt.Sprintf("%s  due %s", t.Id, stamp(t.Due))
	if t.ExecutionId != "" {
		out += "  until " + t.ExecutionId + " ends"
	}
	return out + "  " + pathText(clipText(t.Message, listedMessage))
}
