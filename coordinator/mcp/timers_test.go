package mcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestTimerTools(t *testing.T) {
	due := timestamppb.New(time.Date(2030, 1, 31, 7, 0, 0, 0, time.UTC))
	var asked *skerryv1.CreateTimerRequest
	f := &fake{t: t}
	f.createTimer = func(r *skerryv1.CreateTimerRequest) (*skerryv1.Timer, error) {
		asked = r
		if r.At == "tomorrow" {
			return nil, problem.Invalid("afterMs", "give exactly one of afterMs and at", "is neither")
		}
		return &skerryv1.Timer{Id: "tm_1", Due: due, Message: r.Message, ExecutionId: r.ExecutionId}, nil
	}
	f.cancelTimer = func(r *skerryv1.CancelTimerRequest) (*skerryv1.Timer, error) {
		return nil, problem.Missing("timerId", "no such timer is pending")
	}
	f.listTimers = func(*skerryv1.ListTimersRequest) (*skerryv1.ListTimersResponse, error) {
		out := &skerryv1.ListTimersResponse{}
		for i := range 1000 {
			out.Timers = append(out.Timers, &skerryv1.Timer{Id: fmt.Sprint("tm_", i), Due: due, Message: strings.Repeat("m", 4000)})
		}
		return out, nil
	}
	s := newSession(t, f)
	a := s.good("timer_create", `{"after_ms":1500,"message":"look\nhere","execution_id":"ex_1"}`)
	if asked.AfterMs != 1500 || asked.ExecutionId != "ex_1" || asked.Message != "look\nhere" || a.json["id"] != "tm_1" ||
		!strings.Contains(a.text[0], `tm_1  due 2030-01-31T07:00:00Z  until ex_1 ends  "look\nhere"`) {
		t.Errorf("%v, %+v", asked, a)
	}
	if p := s.call("timer_create", `{"at":"tomorrow","message":"m"}`).problem(t); p.Field != "after_ms" || !strings.Contains(p.Remedy, "after_ms") {
		t.Errorf("problem %+v", p)
	}
	if p := s.call("timer_create", `{"after_ms":0,"message":"m"}`).problem(t); p.Field != "after_ms" {
		t.Errorf("problem %+v", p)
	}
	if p := s.call("timer_create", `{"after_ms":1,"message":"`+strings.Repeat("m", 4001)+`"}`).problem(t); p.Reason != problem.LimitExceeded || p.Field != "message" {
		t.Errorf("problem %+v", p)
	}
	if p := s.call("timer_cancel", `{"timer_id":"tm_9"}`).problem(t); p.Reason != problem.NotFound || p.Field != "timer_id" {
		t.Errorf("problem %+v", p)
	}
	list := s.good("timer_list", `{}`)
	if !strings.HasPrefix(list.text[0], "the first 100 of 1000 pending timers") || len(list.text[0]) > maxText || list.size > 64<<10 {
		t.Errorf("list of %d bytes, text of %d: %.200s", list.size, len(list.text[0]), list.text[0])
	}
}
