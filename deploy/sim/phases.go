package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// sim is a simulation under way.
type sim struct {
	plan    plan
	report  *report
	dir     string
	daemons []*daemon
	admin   string
	trust   *tls.Config
	http    *http.Transport
	world   *world
	tokens  map[string]string
	fleet   *fleet
	stop    context.CancelFunc
	nextNew int
}

func (s *sim) close() {
	for _, d := range s.daemons {
		d.kill()
	}
	if s.stop != nil {
		s.stop()
	}
	if s.plan.Dir == "" && s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *sim) client(token string) *http.Client {
	return &http.Client{Transport: bearer{token, s.http}}
}

// leader is the coordinator that answers calls itself.
func (s *sim) leader(ctx context.Context) (found *daemon, err error) {
	err = waitFor(ctx, 5*time.Minute, "a leader", func() error {
		for _, d := range s.daemons {
			if d.cmd == nil {
				continue
			}
			if v, err := d.metric("skerry_raft_leader"); err == nil && v == 1 && d.ready() == nil {
				found = d
				return nil
			}
		}
		return errors.New("none leads")
	})
	return found, err
}

// start starts the coordinators with nothing in them.
func (s *sim) start(ctx context.Context) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if need := uint64(s.plan.Runners + 500); limit.Max < need {
		return fmt.Errorf("a process may open %d files here, %d runners need %d: raise ulimit -n", limit.Max, s.plan.Runners, need)
	}
	s.dir = s.plan.Dir
	if s.dir == "" {
		var err error
		if s.dir, err = os.MkdirTemp("", "skerry-sim-"); err != nil {
			return err
		}
	}
	for n := range s.plan.Coordinators {
		d, err := newDaemon(s.plan.Bin, s.dir, n+1)
		if err != nil {
			return err
		}
		s.daemons = append(s.daemons, d)
	}
	if err := s.startFirst(ctx); err != nil {
		return err
	}
	for _, d := range s.daemons[1:] {
		path, err := s.joinToken(ctx, d.name)
		if err != nil {
			return err
		}
		d.enter = fmt.Sprintf("join: [%s]\n  join_token_file: %s", s.daemons[0].endpoint(), path)
		if err := d.start(true); err != nil {
			return err
		}
	}
	for _, d := range s.daemons {
		if err := waitFor(ctx, time.Minute, d.name, d.ready); err != nil {
			return err
		}
	}
	time.Sleep(5 * time.Second)
	s.report.add("memory of an idle coordinator", s.daemons[0].memory(), "MiB", "<= 50")
	return nil
}

func (s *sim) startFirst(ctx context.Context) error {
	first := s.daemons[0]
	first.enter = "bootstrap: true"
	if err := first.start(s.several()); err != nil {
		return err
	}
	if err := waitFor(ctx, time.Minute, first.name, first.ready); err != nil {
		return err
	}
	err := waitFor(ctx, time.Minute, "the admin token", func() error {
		text, err := os.ReadFile(filepath.Join(first.dir, "data", "admin.token"))
		s.admin = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		return err
	}
	s.trust, err = first.roots()
	if err != nil {
		return err
	}
	s.http = &http.Transport{TLSClientConfig: s.trust, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100}
	return nil
}

func (s *sim) several() bool { return s.plan.Coordinators > 1 }

// fill restores a snapshot with all workspaces.
func (s *sim) fill(ctx context.Context) error {
	s.world = newWorld(s.plan)
	path := filepath.Join(s.dir, "world")
	tokens, size, sum, err := s.world.writeFile(path, s.admin)
	if err != nil {
		return err
	}
	s.tokens = tokens
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close(); _ = os.Remove(path) }()
	s.report.add("snapshot", float64(size)/(1<<20), "MiB", "")
	s.report.add("snapshot, of each workspace", float64(size)/float64(s.plan.Workspaces), "bytes", "")
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	in := rpc.NewClusterServiceClient(s.client(s.admin), leader.endpoint()).RestoreSnapshot(ctx)
	start := &skerryv1.RestoreStart{Info: &skerryv1.SnapshotInfo{ClusterId: "cl_simulated", Size: uint64(size), Sha256: sum}, Force: true}
	err = in.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Start{Start: start}})
	for chunk := make([]byte, 256<<10); err == nil; {
		n, readErr := f.Read(chunk)
		if n > 0 {
			err = in.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Data{Data: chunk[:n]}})
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		return err
	}
	s.report.add("restore by command, checks and all coordinators included", time.Since(began).Seconds(), "s", "")
	return nil
}

// restartAll shows what a start costs, and memory without what filling left.
func (s *sim) restartAll(ctx context.Context) error {
	for _, d := range s.daemons {
		d.kill()
	}
	began := time.Now()
	for _, d := range s.daemons {
		if err := d.start(s.several()); err != nil {
			return err
		}
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	s.report.add("start with this state, until it leads", time.Since(began).Seconds(), "s", "")
	time.Sleep(5 * time.Second)
	s.report.add("memory with the workspaces", leader.memory(), "MiB", "")
	return nil
}

// bringRunners starts all runners at once.
func (s *sim) bringRunners(ctx context.Context) error {
	var endpoints []string
	for _, d := range s.daemons {
		endpoints = append(endpoints, d.endpoint())
	}
	s.fleet = newFleet(s.world, s.tokens, s.trust, endpoints)
	ctx, s.stop = context.WithCancel(ctx)
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	before, cpu, began := leader.memory(), leader.cpu(), time.Now()
	s.fleet.run(ctx)
	if err := s.awaitRunners(ctx); err != nil {
		return err
	}
	s.report.add("all runners up, dialling at once", time.Since(began).Seconds(), "s", "")
	s.report.add("processor time for that, each runner", float64(leader.cpu()-cpu)/float64(time.Millisecond)/float64(s.plan.Runners), "ms", "")
	time.Sleep(5 * time.Second)
	s.report.add("memory with the runners too", leader.memory(), "MiB", "")
	s.report.add("memory of each runner's link", (leader.memory()-before)*1024/float64(s.plan.Runners), "KiB", "")
	return nil
}

func (s *sim) awaitRunners(ctx context.Context) error {
	return waitFor(ctx, 5*time.Minute, "runners", func() error {
		for _, d := range s.daemons {
			if d.cmd == nil {
				continue
			}
			if up, err := d.metric("skerry_coordinator_runners_up"); err == nil && int(up) == s.plan.Runners {
				return nil
			}
		}
		return errors.New("not all are up")
	})
}

// idle measures what heartbeats alone cost.
func (s *sim) idle(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	index, err := leader.metric("skerry_raft_last_index")
	if err != nil {
		return err
	}
	cpu, began := leader.cpu(), time.Now()
	time.Sleep(s.plan.Idle)
	s.report.add("heartbeats alone", (leader.cpu()-cpu).Seconds()/time.Since(began).Seconds(), "cores", "<= 1")
	last, err := leader.metric("skerry_raft_last_index")
	s.report.add("log entries meanwhile", last-index, "", "0")
	return err
}

// cordon is a small write: it marks a runner as taking no new workspaces, or ends that.
func (s *sim) cordon(ctx context.Context, at *daemon) func(n int) error {
	c := rpc.NewRunnerServiceClient(s.client(s.admin), at.endpoint())
	return func(n int) error {
		req := &skerryv1.CordonRunnerRequest{Runner: runnerName(0), Reason: fmt.Sprint(n)}
		_, err := c.CordonRunner(ctx, connect.NewRequest(req))
		return err
	}
}

// writes measures a steady stream of small writes.
func (s *sim) writes(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	cpu, began := leader.cpu(), time.Now()
	got := steadily(ctx, s.plan.Short, 10*time.Millisecond, s.cordon(ctx, leader))
	if got.err != nil {
		return got.err
	}
	s.report.add("100 small writes a second", (leader.cpu()-cpu).Seconds()/time.Since(began).Seconds(), "cores", "")
	s.report.add("a small write, p50", ms(got.at(0.5)), "ms", "")
	s.report.add("a small write, longest", ms(got.at(1)), "ms", "")
	return nil
}

// assignments measures first calls of agents: place, commit, and ask the runner.
func (s *sim) assignments(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	for _, named := range []bool{true, false} {
		rate, err := s.assign(ctx, leader, named, 16, s.plan.Short)
		if err != nil {
			return err
		}
		name := "first calls of agents, 16 at once, placed among all runners"
		if named {
			name = "first calls of agents, 16 at once, runner named"
		}
		s.report.add(name, rate, "/s", "")
	}
	return nil
}

// storm has each runner report new heads for a while.
func (s *sim) storm(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	index, err := leader.metric("skerry_raft_last_index")
	if err != nil {
		return err
	}
	cpu, began, told := leader.cpu(), time.Now(), 0
	rounds := int(s.plan.Short / time.Second)
	for round := range rounds {
		for i, r := range s.fleet.runners {
			if r.report(round, s.plan.Heads) {
				told += s.plan.Heads
			}
			if i%100 == 0 { // spread over the second
				time.Sleep(time.Until(began.Add(time.Duration(round)*time.Second + time.Duration(i)*time.Second/time.Duration(len(s.fleet.runners)))))
			}
		}
	}
	sent := time.Since(began)
	quiet, last := time.Now(), index
	for time.Since(quiet) < 2*time.Second {
		now, err := leader.metric("skerry_raft_last_index")
		if err != nil {
			return err
		}
		if now != last {
			quiet, last = time.Now(), now
		}
		time.Sleep(100 * time.Millisecond)
	}
	took := quiet.Sub(began)
	s.report.add("storm: heads told a second", float64(told)/sent.Seconds(), "/s", "")
	s.report.add("storm: log entries a second", (last-index)/took.Seconds(), "/s", "")
	s.report.add("storm: heads in a log entry", float64(told)/(last-index), "", "")
	s.report.add("storm: all committed after its end", (took - sent).Seconds(), "s", "")
	s.report.add("storm: processor", (leader.cpu()-cpu).Seconds()/took.Seconds(), "cores", "")
	return nil
}
