package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// forward is a port of a node as it is reached on loopback.
type forward struct {
	space, to string
	ln        net.Listener
}

// startHub reserves ports on loopback and starts the process that serves them.
func (c *cluster) startHub(ctx context.Context) error {
	port := func() (string, error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		return ln.Addr().String(), ln.Close()
	}
	for _, n := range c.Nodes {
		metrics, err := port()
		if err != nil {
			return err
		}
		n.Metrics = "http://" + metrics
		if n.Role == roleCoordinator {
			api, err := port()
			if err != nil {
				return err
			}
			n.Endpoint = "https://" + api
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

// serveHub makes the nodes' ports reachable on loopback until ctx ends.
func (c *cluster) serveHub(ctx context.Context) error {
	var forwards []forward
	add := func(n *node, url, scheme, port string) error {
		ln, err := net.Listen("tcp", url[len(scheme):])
		if err != nil {
			return err
		}
		forwards = append(forwards, forward{space: n.Space, to: net.JoinHostPort(n.IP, port), ln: ln})
		return nil
	}
	for _, n := range c.Nodes {
		if err := add(n, n.Metrics, "http://", portMetrics); err != nil {
			return err
		}
		if n.Role == roleCoordinator {
			if err := add(n, n.Endpoint, "https://", portAPI); err != nil {
				return err
			}
		}
	}
	var work sync.WaitGroup
	for _, f := range forwards {
		work.Go(func() { f.serve() })
	}
	<-ctx.Done()
	for _, f := range forwards {
		_ = f.ln.Close()
	}
	work.Wait()
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
