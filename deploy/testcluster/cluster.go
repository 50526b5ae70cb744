package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plan is what up was asked for.
type plan struct {
	Coordinators int               `json:"coordinators"`
	Runners      int               `json:"runners"`
	Disks        bool              `json:"disks,omitempty"`
	Coordinator  map[string]string `json:"coordinatorSet,omitempty"`
	Runner       map[string]string `json:"runnerSet,omitempty"`
	// RunnerYAML ends every runner's configuration.
	RunnerYAML string `json:"runnerYaml,omitempty"`
}

// cluster is what a directory holds.
type cluster struct {
	Dir string `json:"dir"`
	// ID is the prefix of the namespaces' names.
	ID    string  `json:"id"`
	Plan  plan    `json:"plan"`
	Nodes []*node `json:"nodes"`
	Hub   process `json:"hub"`
	// Added is the number of the node that was added last.
	Added int `json:"added,omitempty"`
	// AdminToken is the first admin token, CAFile what an agent trusts.
	AdminToken string `json:"adminToken"`
	CAFile     string `json:"caFile"`
}

const (
	stateFile = "cluster.json"
	// readyTimeout bounds each wait of up and start.
	readyTimeout = 60 * time.Second
)

func create(dir string, p plan) (*cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if p.Coordinators != 1 && p.Coordinators != 3 && p.Coordinators != 5 {
		return nil, fmt.Errorf("--coordinators is %d: use 1, 3 or 5", p.Coordinators)
	}
	if p.Runners < 0 || p.Runners > 100 {
		return nil, fmt.Errorf("--runners is %d: use 0 to 100", p.Runners)
	}
	if _, err := os.Stat(filepath.Join(dir, stateFile)); err == nil {
		return nil, fmt.Errorf("there is a cluster in %s: take it down first, or name another --dir", dir)
	}
	// Sandboxes must be able to pass the directory to the workspaces in it.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(dir))
	c := &cluster{Dir: dir, ID: "sk" + hex.EncodeToString(sum[:3]), Plan: p, CAFile: filepath.Join(dir, "ca.pem")}
	for i := range p.Coordinators {
		c.Nodes = append(c.Nodes, c.newNode(roleCoordinator, i+1))
	}
	c.Nodes[0].Founder = true
	for i := range p.Runners {
		c.Nodes = append(c.Nodes, c.newNode(roleRunner, i+1))
	}
	return c, c.save()
}

func load(dir string) (*cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no cluster in %s: run up", dir)
	}
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	return c, json.Unmarshal(text, c)
}

func (c *cluster) save() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(c.Dir, stateFile)
	if err := os.WriteFile(path+".tmp", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (c *cluster) node(name string) (*node, error) {
	var names []string
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("no node %q; there are %s", name, strings.Join(names, ", "))
}

func (c *cluster) eachNode(names []string, do func(*node) error) error {
	for _, name := range names {
		n, err := c.node(name)
		if err != nil {
			return err
		}
		if err := do(n); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return c.save()
}

func (c *cluster) withRole(role string) (out []*node) {
	for _, n := range c.Nodes {
		if n.Role == role {
			out = append(out, n)
		}
	}
	return out
}

// up starts the first coordinator as a new cluster, has the others join, and
// waits until all runners are up.
func (c *cluster) up(ctx context.Context) error {
	if err := c.makeNetwork(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if err := c.startHub(ctx); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	coordinators := c.withRole(roleCoordinator)
	first := coordinators[0]
	if err := c.start(ctx, first); err != nil {
		return fmt.Errorf("%s: %w", first.Name, err)
	}
	if err := c.readAdmin(ctx, first); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if n == first {
			continue
		}
		if err := c.join(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return errors.Join(c.awaitMembers(ctx), c.save())
}

// join makes a join token for n and starts it.
func (c *cluster) join(ctx context.Context, n *node) error {
	var out struct{ Secret string }
	if err := c.call(ctx, "JoinService/CreateJoinToken", map[string]any{"role": n.Role, "name": n.Name}, &out); err != nil {
		return err
	}
	if err := os.MkdirAll(n.Dir, 0o711); err != nil {
		return err
	}
	if err := os.WriteFile(n.joinToken(), []byte(out.Secret+"\n"), 0o600); err != nil {
		return err
	}
	return c.start(ctx, n)
}

// readAdmin takes the first admin token and the authority's certificate from the
// first coordinator's directory.
func (c *cluster) readAdmin(ctx context.Context, first *node) error {
	token := filepath.Join(first.dataDir(), "admin.token")
	err := await(ctx, "admin token", func() error {
		text, err := os.ReadFile(token)
		c.AdminToken = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(first.dataDir(), "tls", "identity.pem"))
	if err != nil {
		return err
	}
	const end = "-----END CERTIFICATE-----\n"
	_, authorities, ok := strings.Cut(string(text), end)
	if !ok {
		return errors.New("identity.pem has no authority")
	}
	if err := os.WriteFile(c.CAFile, []byte(authorities), 0o644); err != nil {
		return err
	}
	return c.save()
}

// awaitMembers waits until all coordinators vote and all runners are up.
func (c *cluster) awaitMembers(ctx context.Context) error {
	err := await(ctx, "coordinators to vote", func() error {
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		voters := 0
		for _, m := range members {
			if m.Role == "leader" || m.Role == "voter" {
				voters++
			}
		}
		if voters != c.Plan.Coordinators {
			return fmt.Errorf("%d of %d vote", voters, c.Plan.Coordinators)
		}
		return nil
	})
	return errors.Join(err, await(ctx, "runners", func() error {
		var out struct{ Runners []struct{ State string } }
		if err := c.call(ctx, "RunnerService/ListRunners", map[string]any{}, &out); err != nil {
			return err
		}
		up := 0
		for _, r := range out.Runners {
			if r.State == "up" {
				up++
			}
		}
		if up != c.Plan.Runners {
			return fmt.Errorf("%d of %d are up", up, c.Plan.Runners)
		}
		return nil
	}))
}

// down ends every process and removes all that up made.
func (c *cluster) down() error {
	var errs []error
	for _, n := range c.Nodes {
		if mounted(n.dataDir()) {
			_ = n.unstall() // an error says that it was not stalled
		}
		errs = append(errs, c.endAll(n), n.removeDisk())
	}
	errs = append(errs, c.Hub.kill(), c.removeNetwork())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(c.Dir)
}

// errHopeless ends an await: waiting does not help.
var errHopeless = errors.New("the process has ended")

// await repeats check until it gives no error.
func await(ctx context.Context, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if errors.Is(err, errHopeless) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}
