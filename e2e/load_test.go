package e2e

import (
	"testing"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Lists and placement go by what runs now, also while nothing is committed.
func TestLoadIsThatOfNow(t *testing.T) {
	d := newDev(t)
	load := func() uint32 {
		res, err := d.admin().run.ListRunners(t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		if err != nil || len(res.Msg.Runners) != 1 {
			t.Fatalf("runners: %v, %v", res, err)
		}
		return res.Msg.Runners[0].Running + res.Msg.Runners[0].Queued
	}
	c, _ := d.agent("busy")
	e := c.start(t, "sleep 300", nil)
	d.eventually("the execution is counted", func() bool { return load() == 1 })
	d.cancel(c, e.Id)
	d.eventually("nothing is counted", func() bool { return load() == 0 })
}
