// Command sim measures a coordinator at scale: real coordinators hold the state
// of very many workspaces while very many simulated runners keep links with
// them. It prints a table, and JSON with -json; docs/scale.md has the figures.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// plan is how large the simulation is.
type plan struct {
	Bin          string        `json:"-"`
	Dir          string        `json:"-"`
	Coordinators int           `json:"coordinators"`
	Runners      int           `json:"runners"`
	Workspaces   int           `json:"workspaces"`
	Heads        int           `json:"headsPerSecond"`
	Idle         time.Duration `json:"-"`
	Short        time.Duration `json:"-"`
	Profile      string        `json:"-"`
}

func main() {
	p := plan{}
	flag.StringVar(&p.Bin, "bin", "bin", "directory of the built programs")
	flag.StringVar(&p.Dir, "dir", "", "work here and keep it; empty: a temporary directory")
	flag.IntVar(&p.Coordinators, "coordinators", 1, "1, or 3 of a cluster")
	flag.IntVar(&p.Runners, "runners", 10_000, "simulated runners")
	flag.IntVar(&p.Workspaces, "workspaces", 1_000_000, "workspaces in the replicated state")
	flag.IntVar(&p.Heads, "heads", 10, "heads that each runner reports a second in the storm")
	flag.DurationVar(&p.Idle, "idle", time.Minute, "how long heartbeats alone are measured")
	flag.DurationVar(&p.Short, "short", 10*time.Second, "length of the other measurements")
	asJSON := flag.Bool("json", false, "print JSON instead of a table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	out, err := simulate(ctx, p)
	stop()
	if err == nil || len(out.Rows) > 0 {
		out.print(*asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// figure is one measured value.
type figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Budget string  `json:"budget,omitempty"`
}

// report is what was measured, in order.
type report struct {
	Plan plan     `json:"plan"`
	Rows []figure `json:"figures"`
}

func (r *report) add(name string, value float64, unit, budget string) {
	r.Rows = append(r.Rows, figure{name, value, unit, budget})
	fmt.Fprintf(os.Stderr, "  %-66s %12.4g %-8s %s\n", name, value, unit, budget)
}

func (r *report) print(asJSON bool) {
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		_ = enc.Encode(r)
		return
	}
	fmt.Printf("%d coordinators, %d runners, %d workspaces\n\n| what | measured | budget |\n|---|---|---|\n", r.Plan.Coordinators, r.Plan.Runners, r.Plan.Workspaces)
	for _, f := range r.Rows {
		fmt.Printf("| %s | %.4g %s | %s |\n", f.Name, f.Value, f.Unit, f.Budget)
	}
}

// simulate runs every phase. What was measured before a failure is given too.
func simulate(ctx context.Context, p plan) (*report, error) {
	s := &sim{plan: p, report: &report{Plan: p}}
	defer s.close()
	for _, phase := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start", s.start}, {"fill the state", s.fill}, {"restart with the state", s.restartAll}, {"runners come", s.bringRunners},
		{"heartbeats alone", s.idle}, {"writes", s.writes}, {"assignments", s.assignments}, {"storm of heads", s.storm},
		{"snapshot", s.snapshot}, {"leader killed", s.failOver},
	} {
		fmt.Fprintln(os.Stderr, phase.name)
		if err := phase.run(ctx); err != nil {
			return s.report, fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return s.report, nil
}
