package placement

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	base   = "bwrap-userns+seccomp"
	strong = "containerd-userns+seccomp+cgroup+uid"
)

func up(name string, busy, slots uint32) Runner {
	return Runner{Name: name, Up: true, Tier: base, Busy: busy, Slots: slots}
}

func with(r Runner, change func(*Runner)) Runner { change(&r); return r }

func condition(t testing.TB, text string) Condition {
	t.Helper()
	c, err := ParseCondition(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return c
}

func TestConstraints(t *testing.T) {
	gpu := with(up("r", 0, 2), func(r *Runner) {
		r.Labels = map[string]string{"arch": "arm64", "zone": "a"}
		r.Free = map[string]uint32{DeviceNPU: 4}
		r.Environments = []string{"torch"}
	})
	conditions := func(texts ...string) (out []Condition) {
		for _, text := range texts {
			out = append(out, condition(t, text))
		}
		return out
	}
	tests := []struct {
		name   string
		change func(*Runner)
		req    Request
		want   Reason
		says   string
	}{
		{"nothing asked", nil, Request{}, "", ""},
		{"down", func(r *Runner) { r.Up = false }, Request{}, Down, "not connected"},
		{"cordoned", func(r *Runner) { r.Schedule = "cordoned" }, Request{}, Cordoned, "uncordon"},
		{"draining", func(r *Runner) { r.Schedule = "draining" }, Request{}, Draining, "draining"},
		{"drained", func(r *Runner) { r.Schedule = "drained" }, Request{}, Draining, "drained"},
		{"occupied", func(r *Runner) { r.Occupied = true }, Request{}, Occupied, "already"},
		{"in scope", nil, Request{Scope: []string{"x", "r*"}}, "", ""},
		{"out of scope", nil, Request{Scope: []string{"x"}}, OutOfScope, "x"},
		{"out of scope and down", func(r *Runner) { r.Up = false }, Request{Scope: []string{"x"}}, OutOfScope, "x"},
		{"label", nil, Request{Selector: conditions("arch=arm64", "zone!=b", "zone in (a, b)", "disk!=hdd")}, "", ""},
		{"other label", nil, Request{Selector: conditions("arch=arm64", "zone=b")}, Label, `zone=b does not hold: its zone is "a"`},
		{"not label", nil, Request{Selector: conditions("zone!=a")}, Label, "zone!=a"},
		{"label not set", nil, Request{Selector: conditions("disk=ssd")}, Label, "disk is not set"},
		{"none of", nil, Request{Selector: conditions("zone in (b,c)")}, Label, "zone in (b,c)"},
		{"tier", nil, Request{Tier: base}, "", ""},
		{"stronger tier", func(r *Runner) { r.Tier = strong }, Request{Tier: "bwrap-userns+seccomp+cgroup"}, "", ""},
		{"weaker tier", nil, Request{Tier: "bwrap-userns+seccomp+cgroup"}, Tier, "weaker"},
		{"no tier", func(r *Runner) { r.Tier = "none" }, Request{Tier: base}, Tier, "none"},
		{"unknown tier asked", func(r *Runner) { r.Tier = strong }, Request{Tier: "sealed"}, Tier, "sealed"},
		{"npus", nil, Request{NPU: 4}, "", ""},
		{"too few npus", nil, Request{NPU: 5}, NPU, "4 NPUs are free there, 5 needed"},
		{"environment", nil, Request{Environment: "torch"}, "", ""},
		{"no environment", nil, Request{Environment: "jax"}, Environment, "jax"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := gpu
			if tt.change != nil {
				tt.change(&r)
			}
			d := Place([]Runner{r}, tt.req)
			if tt.want == "" {
				if len(d.Candidates) != 1 || len(d.Rejected) != 0 {
					t.Fatalf("%+v", d)
				}
				return
			}
			if len(d.Rejected) != 1 || d.Rejected[0].Reason != tt.want || !strings.Contains(d.Rejected[0].Message, tt.says) {
				t.Fatalf("%+v, want %s %q", d, tt.want, tt.says)
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	runners := []Runner{
		up("idle", 0, 4), up("half", 2, 4), up("almost", 3, 4), up("full", 4, 4), up("queue", 9, 4), up("big", 6, 16), {Name: "off"},
		with(up("replica", 3, 4), func(r *Runner) { r.Replicas = 1 }),
	}
	for policy, want := range map[string]string{
		"": "replica idle big half almost full queue", Spread: "replica idle big half almost full queue",
		Pack: "replica almost half big idle queue full",
	} {
		var got []string
		for _, c := range Place(runners, Request{Policy: policy}).Candidates {
			got = append(got, c.Runner)
			if len(c.Reasons) == 0 {
				t.Errorf("%s: no reason", c.Runner)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", policy, got, want)
		}
	}
}

func TestConditionsThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"", "k", "=v", "k in a", "k in (a", "k in (a))", "k=a,b", "k=a b", "k==v", "a b=c", "!=v", "k!!=v",
		"k in (a,(b))", "-k=v", strings.Repeat("a", 2000) + "=b", "k=" + strings.Repeat("v", 300)} {
		if c, err := ParseCondition(text); err == nil {
			t.Errorf("%.40q was read as %+v", text, c)
		}
	}
	if c := condition(t, " k = "); !c.Holds(map[string]string{"k": ""}) || c.Holds(nil) {
		t.Errorf("empty value: %+v", c)
	}
}

func drawRunner(t *rapid.T, name string) Runner {
	words := rapid.SampledFrom([]string{"a", "b"})
	return Runner{Name: name, Labels: map[string]string{"k": words.Draw(t, "label")}, Tier: rapid.SampledFrom([]string{"none", base, strong}).Draw(t, "tier"),
		Slots: rapid.Uint32Range(0, 3).Draw(t, "slots"), Busy: rapid.Uint32Range(0, 4).Draw(t, "busy"), Up: rapid.Bool().Draw(t, "up"),
		Schedule: rapid.SampledFrom([]string{"", "", "cordoned", "drained"}).Draw(t, "schedule"), Free: map[string]uint32{DeviceNPU: rapid.Uint32Range(0, 2).Draw(t, "npu")},
		Replicas: rapid.IntRange(0, 2).Draw(t, "replicas"), Occupied: rapid.Bool().Draw(t, "occupied")}
}

// Every runner is named once; the decision does not depend on their order; a
// runner that was rejected stays so whatever the others are.
func TestPropertyDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var runners []Runner
		for i := range rapid.IntRange(0, 6).Draw(t, "runners") {
			runners = append(runners, drawRunner(t, fmt.Sprint("r", i)))
		}
		req := Request{Tier: rapid.SampledFrom([]string{"", base}).Draw(t, "least"), NPU: rapid.Uint32Range(0, 2).Draw(t, "need"),
			Policy: rapid.SampledFrom([]string{"", Spread, Pack}).Draw(t, "policy")}
		if rapid.Bool().Draw(t, "select") {
			req.Selector = []Condition{{Key: "k", Values: []string{"a"}, text: "k=a"}}
		}
		d := Place(runners, req)
		if again := Place(rapid.Permutation(runners).Draw(t, "order"), req); !reflect.DeepEqual(d, again) {
			t.Fatalf("another order: %+v, %+v", d, again)
		}
		first := ""
		if len(d.Candidates) > 0 {
			first = d.Candidates[0].Runner
		}
		if best := Best(runners, req); best != first {
			t.Fatalf("the best is %q, the first candidate %q", best, first)
		}
		seen := map[string]bool{}
		for _, c := range d.Candidates {
			seen[c.Runner] = true
		}
		for _, r := range d.Rejected {
			if seen[r.Runner] || r.Reason == "" || r.Message == "" {
				t.Fatalf("%+v", d)
			}
			seen[r.Runner] = true
			i := slices.IndexFunc(runners, func(x Runner) bool { return x.Name == r.Runner })
			if alone := Place(runners[i:i+1], req); len(alone.Candidates) != 0 {
				t.Fatalf("%s is rejected only beside others", r.Runner)
			}
		}
		if len(seen) != len(runners) {
			t.Fatalf("%d of %d runners named", len(seen), len(runners))
		}
	})
}
