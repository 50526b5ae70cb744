package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The nodes' network. It is seen within the namespaces alone, so that every
// cluster has the same addresses.
const (
	network = "10.77.0."
	bridge  = "br0"
)

func (c *cluster) switchSpace() string { return c.ID + "-net" }

// run runs a command and gives its output with its error.
func run(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func inAll(commands ...[]string) error {
	for _, argv := range commands {
		if err := run(argv...); err != nil {
			return err
		}
	}
	return nil
}

// makeNetwork gives each node a namespace, joined by a bridge in one more.
func (c *cluster) makeNetwork() error {
	net := c.switchSpace()
	err := inAll([]string{"ip", "netns", "add", net}, []string{"ip", "-n", net, "link", "add", bridge, "type", "bridge"},
		[]string{"ip", "-n", net, "link", "set", bridge, "up"})
	for _, n := range c.Nodes {
		if err != nil {
			return err
		}
		err = c.plug(n)
	}
	return err
}

// plug gives a node its namespace and joins that to the bridge.
func (c *cluster) plug(n *node) error {
	net, port := c.switchSpace(), n.Name
	err := inAll([]string{"ip", "netns", "add", n.Space},
		[]string{"ip", "-n", net, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", n.Space},
		[]string{"ip", "-n", net, "link", "set", port, "master", bridge, "up"},
		[]string{"ip", "-n", n.Space, "addr", "add", n.IP + "/24", "dev", "eth0"},
		[]string{"ip", "-n", n.Space, "link", "set", "eth0", "up"},
		[]string{"ip", "-n", n.Space, "link", "set", "lo", "up"})
	if err != nil || n.Via == "" {
		return err
	}
	via, err := c.node(n.Via)
	if err != nil {
		return err
	}
	return run("nsenter", "--net=/run/netns/"+n.Space, "iptables", "-w", "-A", "OUTPUT", "!", "-o", "lo", "!", "-d", via.IP, "-j", "DROP")
}

func (c *cluster) removeNetwork() error {
	var errs []error
	for _, space := range append(c.spaces(), c.switchSpace()) {
		if _, err := os.Stat(filepath.Join("/run/netns", space)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		errs = append(errs, run("ip", "netns", "del", space))
	}
	return errors.Join(errs...)
}

func (c *cluster) spaces() (out []string) {
	for _, n := range c.Nodes {
		out = append(out, n.Space)
	}
	return out
}

// partition drops what the nodes of one side send to those of the other, where
// it arrives: neither end learns of it.
func (c *cluster) partition(a, b string, oneWay bool) error {
	return c.eachNode(strings.Split(a, ","), func(from *node) error {
		return c.eachNode(strings.Split(b, ","), func(to *node) error {
			err := drop(to, from)
			if !oneWay {
				err = errors.Join(err, drop(from, to))
			}
			return err
		})
	})
}

func drop(at, from *node) error {
	return run("nsenter", "--net=/run/netns/"+at.Space, "iptables", "-w", "-A", "INPUT", "-s", from.IP, "-j", "DROP")
}

func (c *cluster) heal() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, run("nsenter", "--net=/run/netns/"+n.Space, "iptables", "-w", "-F", "INPUT"))
	}
	return errors.Join(errs...)
}
