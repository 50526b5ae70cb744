package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forward is a port of a node as it is reached on loopback.
type forward struct {
	space, to string
	ln        net.Listener
}

// Ports on loopback are below those that the system gives to connections, so
// that none is taken between two commands.
const firstPort, ports = 20000, 12000

// freePort gives an address on loopback that nobody listens at.
func freePort() (string, error) {
	var errs []error
	for range 20 {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(ports))))
		if err == nil {
			return ln.Addr().String(), ln.Close()
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// reservePorts chooses the ports on loopback by which n is reached.
func (n *node) reservePorts() error {
	metrics, err := freePort()
	if err != nil {
		return err
	}
	n.Metrics = "http://" + metrics
	if n.Role != roleCoordinator {
		return nil
	}
	api, err := freePort()
	n.Endpoint = "https://" + api
	return err
}

// startHub reserves ports on loopback and starts the process that serves them.
func (c *cluster) startHub(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.reservePorts(); err != nil {
			return err
		}
	}
	if err := c.save(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if c.Hub, err = startProcess([]string{self, "hub", "--dir", c.Dir}, filepath.Join(c.Dir, "hub.log"), nil); err != nil {
		return err
	}
	return await(ctx, "the hub", func() error {
		if !c.Hub.alive() {
			return fmt.Errorf("%w; see hub.log", errHopeless)
		}
		conn, err := net.DialTimeout("tcp", c.Nodes[0].Endpoint[len("https://"):], time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// serveHub makes the nodes' ports reachable on loopback until ctx ends. SIGHUP
// has it look for nodes that were added or removed.
func serveHub(ctx context.Context, dir string) error {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGHUP)
	var work sync.WaitGroup
	defer work.Wait()
	serving := map[string]forward{}
	defer func() {
		for _, f := range serving {
			_ = f.ln.Close()
		}
	}()
	for {
		c, err := load(dir)
		if err != nil {
			return err
		}
		if err := c.adjust(serving, &work); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// adjust serves what the cluster has now, by addresses on loopback.
func (c *cluster) adjust(serving map[string]forward, work *sync.WaitGroup) error {
	wanted := map[string]forward{}
	for _, n := range c.Nodes {
		wanted[n.Metrics[len("http://"):]] = forward{space: n.Space, to: net.JoinHostPort(n.IP, portMetrics)}
		if n.Role == roleCoordinator {
			wanted[n.Endpoint[len("https://"):]] = forward{space: n.Space, to: net.JoinHostPort(n.IP, portAPI)}
		}
	}
	for address, f := range serving {
		if _, ok := wanted[address]; !ok {
			_ = f.ln.Close()
			delete(serving, address)
		}
	}
	for address, f := range wanted {
		if _, ok := serving[address]; ok {
			continue
		}
		var err error
		if f.ln, err = net.Listen("tcp", address); err != nil {
			return err
		}
		serving[address] = f
		work.Go(f.serve)
	}
	return nil
}

func (f forward) serve() {
	for {
		conn, err := f.ln.Accept()
		if err != nil {
			return
		}
		go f.join(conn)
	}
}

// join connects a caller with the node, and passes on the end of each direction.
func (f forward) join(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := dialIn(f.space, f.to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hub:", err)
		return
	}
	defer func() { _ = to.Close() }()
	var both sync.WaitGroup
	pass := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			_ = dst.Close()
			_ = src.Close()
			return
		}
		_ = dst.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { pass(to, from) })
	both.Go(func() { pass(from, to) })
	both.Wait()
}

// dialIn connects from within a namespace. The thread that has entered it is
// given up afterwards: it ends with its goroutine.
func dialIn(space, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var fd int
		if fd, err = unix.Open(filepath.Join("/run/netns", space), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer func() { _ = unix.Close(fd) }()
		if err = unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return
		}
		// One address: more would be tried by goroutines on other threads.
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp4", address)
	}()
	<-done
	if err != nil {
		return nil, fmt.Errorf("connect with %s in %s: %w", address, space, err)
	}
	return conn, nil
}
