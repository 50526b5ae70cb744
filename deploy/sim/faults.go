package main

import (
	"context"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// snapshot measures how long small writes wait while a snapshot is taken.
func (s *sim) snapshot(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	var took time.Duration
	go func() {
		began := time.Now()
		err := s.takeSnapshot(ctx, leader)
		took = time.Since(began)
		done <- err
	}()
	var all latencies
	for {
		part := steadily(ctx, time.Second, 5*time.Millisecond, s.cordon(ctx, leader))
		if part.err != nil {
			return part.err
		}
		all.took = append(all.took, part.took...)
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			s.report.add("snapshot taken, beside writes", took.Seconds(), "s", "")
			s.report.add("a small write meanwhile, p50", ms(all.at(0.5)), "ms", "")
			s.report.add("a small write meanwhile, p99", ms(all.at(0.99)), "ms", "")
			s.report.add("a small write meanwhile, longest", ms(all.at(1)), "ms", "<= 100 pause")
			s.report.add("memory after a snapshot", leader.memory(), "MiB", "")
			return nil
		default:
		}
	}
}

// takeSnapshot asks for a snapshot and reads no more of it than its header.
func (s *sim) takeSnapshot(ctx context.Context, at *daemon) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := rpc.NewClusterServiceClient(s.client(s.admin), at.endpoint()).SaveSnapshot(ctx, connect.NewRequest(&skerryv1.SaveSnapshotRequest{}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if !stream.Receive() {
		return stream.Err()
	}
	return nil
}

// failOver kills the leader; a lone one is started again at once.
func (s *sim) failOver(ctx context.Context) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	leader.kill()
	began := time.Now()
	if !s.several() {
		if err := leader.start(false); err != nil {
			return err
		}
	}
	next, err := s.leader(ctx)
	if err != nil {
		return err
	}
	s.report.add("leader killed: another leads, or it leads again", time.Since(began).Seconds(), "s", "")
	if err := waitFor(ctx, time.Minute, "a write", func() error { return s.cordon(ctx, next)(0) }); err != nil {
		return err
	}
	s.report.add("leader killed: next write acknowledged", time.Since(began).Seconds(), "s", "")
	writing, stop := context.WithCancel(ctx)
	waits := make(chan *latencies, 1)
	go func() { waits <- steadily(writing, 5*time.Minute, 10*time.Millisecond, s.cordon(ctx, next)) }()
	err = s.awaitRunners(ctx)
	took := time.Since(began)
	stop()
	meanwhile := <-waits
	if err != nil {
		return err
	}
	s.report.add("leader killed: all runners up again", took.Seconds(), "s", "")
	s.report.add("small writes while they come, p50", ms(meanwhile.at(0.5)), "ms", "")
	s.report.add("small writes while they come, longest", ms(meanwhile.at(1)), "ms", "")
	rate, err := s.assign(ctx, next, true, 16, 5*time.Second)
	s.report.add("first calls of agents right after", rate, "/s", "")
	return err
}
