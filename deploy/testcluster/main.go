// Command testcluster composes a cluster of real coordinators and runners on one
// machine, each in a network namespace of its own, kills and starts them, and
// cuts the network between them. Tests use it, and people who want to see a
// cluster at work.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
		os.Exit(1)
	}
}

const defaultDir = "/var/tmp/skerry-testcluster"

func command() *cobra.Command {
	dir := os.Getenv("SKERRY_TESTCLUSTER_DIR")
	if dir == "" {
		dir = defaultDir
	}
	root := &cobra.Command{
		Use: "testcluster", Short: "Run a cluster of coordinators and runners on this machine (as root)",
		Long: "Each node is a real daemon in a network namespace of its own; a small process of this program makes the coordinators reachable on\n" +
			"loopback. Everything is kept in --dir. Results are JSON on stdout: leader, endpoint, adminToken, caFile, nodes.",
		Example:      "  testcluster up\n  testcluster partition c1 c2,c3\n  testcluster heal\n  testcluster kill c1\n  testcluster down",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if os.Geteuid() != 0 {
				return errors.New("network namespaces need root")
			}
			return nil
		},
	}
	root.PersistentFlags().StringVar(&dir, "dir", dir, "directory of the cluster's state and logs (else SKERRY_TESTCLUSTER_DIR)")
	root.AddCommand(upCommand(&dir), hubCommand(&dir),
		simple(&dir, "down", "Stop everything and remove namespaces and directory", 0, func(_ context.Context, c *cluster, _ []string) error { return c.down() }),
		simple(&dir, "status", "Print the cluster", 0, func(context.Context, *cluster, []string) error { return nil }),
		simple(&dir, "kill NODE...", "Kill nodes with SIGKILL", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.end(n, syscall.SIGKILL) })
		}),
		simple(&dir, "stop NODE...", "Stop nodes in order", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.end(n, syscall.SIGTERM) })
		}),
		simple(&dir, "pause NODE...", "Stop nodes' processes from running (SIGSTOP)", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.signal(n, syscall.SIGSTOP) })
		}),
		simple(&dir, "resume NODE...", "Let paused nodes go on", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.signal(n, syscall.SIGCONT) })
		}),
		simple(&dir, "stall NODE...", "Let nothing be written to coordinators' disks (needs up --disks)", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, (*node).stall)
		}),
		simple(&dir, "unstall NODE...", "Let the disks work again", -1, func(_ context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, (*node).unstall)
		}),
		startCommand(&dir), addCommand(&dir), proxyCommand(),
		simple(&dir, "remove NODE...", "Take nodes out of the cluster for ever and remove them", -1, func(ctx context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.remove(ctx, n) })
		}),
		simple(&dir, "replace NODE...", "Take nodes out of the cluster, wipe them, and have them join anew under their names", -1, func(ctx context.Context, c *cluster, nodes []string) error {
			return c.eachNode(nodes, func(n *node) error { return c.replace(ctx, n) })
		}),
		partitionCommand(&dir),
		simple(&dir, "heal", "End all partitions", 0, func(_ context.Context, c *cluster, _ []string) error { return c.heal() }),
	)
	return root
}

// simple is a command on a cluster that is up; it prints the cluster afterwards.
func simple(dir *string, use, short string, args int, run func(context.Context, *cluster, []string) error) *cobra.Command {
	check := cobra.ExactArgs(args)
	if args < 0 {
		check = cobra.MinimumNArgs(1)
	}
	return &cobra.Command{Use: use, Short: short, Args: check, RunE: func(cmd *cobra.Command, words []string) error {
		c, err := load(*dir)
		if err != nil {
			return err
		}
		if err := run(cmd.Context(), c, words); err != nil {
			return err
		}
		return c.print(cmd.Context())
	}}
}

func upCommand(dir *string) *cobra.Command {
	plan := plan{Coordinators: 3, Runners: 3}
	c := &cobra.Command{Use: "up", Short: "Make a cluster and wait until it takes work", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := create(*dir, plan)
		if err != nil {
			return err
		}
		if err := c.up(cmd.Context()); err != nil {
			return errors.Join(err, c.logs(), c.down())
		}
		return c.print(cmd.Context())
	}}
	c.Flags().IntVar(&plan.Coordinators, "coordinators", plan.Coordinators, "how many: 1, 3 or 5")
	c.Flags().IntVar(&plan.Runners, "runners", plan.Runners, "how many")
	c.Flags().BoolVar(&plan.Disks, "disks", false, "give each coordinator a file system of its own, which can be stalled")
	c.Flags().StringToStringVar(&plan.Coordinator, "coordinator-set", nil, "KEY=VALUE of every coordinator's configuration, such as raft.snapshot_threshold=100")
	c.Flags().StringToStringVar(&plan.Runner, "runner-set", nil, "KEY=VALUE of every runner's configuration")
	c.Flags().StringVar(&plan.RunnerYAML, "runner-yaml", "", "text at the end of every runner's configuration, for keys that are no single value")
	return c
}

func startCommand(dir *string) *cobra.Command {
	bin, same := "", false
	c := simple(dir, "start NODE...", "Start nodes that do not run", -1, func(ctx context.Context, c *cluster, nodes []string) error {
		return c.eachNode(nodes, func(n *node) error {
			if bin != "" {
				n.Bin = bin
			}
			if same {
				return c.startAsIs(ctx, n)
			}
			return c.start(ctx, n)
		})
	})
	c.Flags().StringVar(&bin, "bin", "", "directory of the programs that they run from now on")
	c.Flags().BoolVar(&same, "same-config", false, "leave their configuration as it is, without coordinators added since")
	return c
}

func addCommand(dir *string) *cobra.Command {
	via := ""
	c := simple(dir, "add coordinator|runner|proxy", "Add a node, and wait until it is a member", 1, func(ctx context.Context, c *cluster, words []string) error {
		return c.add(ctx, words[0], via)
	})
	c.Flags().StringVar(&via, "via", "", "proxy that is the runner's only way out")
	return c
}

func partitionCommand(dir *string) *cobra.Command {
	oneWay := false
	c := simple(dir, "partition A[,A...] B[,B...]", "Drop what the nodes on both sides send each other", 2, func(_ context.Context, c *cluster, sides []string) error {
		return c.partition(sides[0], sides[1], oneWay)
	})
	c.Flags().BoolVar(&oneWay, "one-way", false, "drop only what the first send to the second")
	return c
}

func hubCommand(dir *string) *cobra.Command {
	return &cobra.Command{Use: "hub", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return serveHub(cmd.Context(), *dir)
	}}
}

func writeJSON(v any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
