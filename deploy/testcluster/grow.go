package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// maxNumber keeps the addresses of one role apart from those of the next.
const maxNumber = 80

// add makes one more node and waits until it is a member: a coordinator that
// votes, a runner that is up.
func (c *cluster) add(ctx context.Context, role, via string) error {
	switch {
	case role != roleCoordinator && role != roleRunner && role != roleProxy:
		return fmt.Errorf("no role %q: use coordinator, runner or proxy", role)
	case role == roleCoordinator && c.Plan.Coordinators == 1:
		return errors.New("a single coordinator takes no others: up with 3")
	case via != "" && role != roleRunner:
		return errors.New("--via is for runners")
	}
	c.Added = max(c.Added, c.Plan.Coordinators, c.Plan.Runners) + 1
	if c.Added > maxNumber {
		return fmt.Errorf("%d nodes were added, which is the limit", c.Added)
	}
	n := c.newNode(role, c.Added)
	n.Via = via
	c.Nodes = append(c.Nodes, n)
	if err := errors.Join(n.reservePorts(), c.save()); err != nil {
		return err
	}
	if err := errors.Join(c.plug(n), syscall.Kill(c.Hub.PID, syscall.SIGHUP)); err != nil {
		return err
	}
	if role == roleProxy {
		return errors.Join(c.start(ctx, n), c.save())
	}
	if err := c.join(ctx, n); err != nil {
		return err
	}
	return errors.Join(c.awaitMember(ctx, n), c.save())
}

// remove takes n out of the cluster and removes it.
func (c *cluster) remove(ctx context.Context, n *node) error {
	if err := c.forget(ctx, n); err != nil {
		return err
	}
	if err := errors.Join(c.endAll(n), n.removeDisk(), run("ip", "netns", "del", n.Space), os.RemoveAll(n.Dir)); err != nil {
		return err
	}
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *node) bool { return other == n })
	if err := c.save(); err != nil {
		return err
	}
	return syscall.Kill(c.Hub.PID, syscall.SIGHUP)
}

// replace is what an operator does whose node has lost its disk.
func (c *cluster) replace(ctx context.Context, n *node) error {
	if err := errors.Join(c.endAll(n), c.forget(ctx, n), n.wipe()); err != nil {
		return err
	}
	n.Founder = false
	if err := c.join(ctx, n); err != nil {
		return err
	}
	return c.awaitMember(ctx, n)
}

// forget has the cluster remove n, which fails while it cannot spare it.
func (c *cluster) forget(ctx context.Context, n *node) error {
	method, in := "ClusterService/RemoveMember", map[string]any{"name": n.Name}
	switch n.Role {
	case roleProxy:
		return nil
	case roleRunner:
		method, in = "RunnerService/RemoveRunner", map[string]any{"runner": n.Name, "force": true}
	}
	return await(ctx, n.Name+" to be removed", func() error { return c.call(ctx, method, in, &struct{}{}) })
}

func (n *node) wipe() error {
	entries, err := os.ReadDir(n.dataDir())
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(n.dataDir(), e.Name())))
	}
	return errors.Join(errs...)
}

// awaitMember waits until a coordinator votes, a runner is up.
func (c *cluster) awaitMember(ctx context.Context, n *node) error {
	return await(ctx, n.Name+" to be a member", func() error {
		if n.Role == roleCoordinator {
			members, err := c.members(ctx)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(members, func(m member) bool { return m.Name == n.Name && (m.Role == "voter" || m.Role == "leader") }) {
				return fmt.Errorf("it does not vote among %v", members)
			}
			return nil
		}
		var out struct {
			Runners []struct{ Name, State string }
		}
		if err := c.call(ctx, "RunnerService/ListRunners", map[string]any{}, &out); err != nil {
			return err
		}
		for _, r := range out.Runners {
			if r.Name == n.Name && r.State == "up" {
				return nil
			}
		}
		return errors.New("it is not up")
	})
}
