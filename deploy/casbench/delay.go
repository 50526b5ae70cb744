package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const oneWay = 10 * time.Millisecond

// delayLine carries packets between two network namespaces, each oneWay later,
// where the kernel has no netem: real TCP with real round trips, but the
// carrying costs processor time, which both who are compared share.
func delayLine(ctx context.Context, a, b string) (stop func(), err error) {
	left, err := tunIn(a)
	if err != nil {
		return nil, err
	}
	right, err := tunIn(b)
	if err != nil {
		return nil, errors.Join(err, left.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	for _, d := range []struct{ from, to *os.File }{{left, right}, {right, left}} {
		line := make(chan packet, 1<<16)
		go readPackets(d.from, line)
		go writePackets(ctx, d.to, line)
	}
	return func() { cancel(); _, _ = left.Close(), right.Close() }, nil
}

type packet struct {
	due  time.Time
	data []byte
}

// readPackets drops what the line has no room for, as a network does.
func readPackets(from *os.File, line chan<- packet) {
	defer close(line)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case line <- packet{time.Now().Add(oneWay), append([]byte(nil), buf[:n]...)}:
		default:
		}
	}
}

func writePackets(ctx context.Context, to *os.File, line <-chan packet) {
	for p := range line {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil && ctx.Err() != nil {
			return
		}
	}
}

// tunIn makes the device tun0 in a network namespace. The thread that enters
// the namespace ends with its goroutine.
func tunIn(namespace string) (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		file, err := openTun("/run/netns/" + namespace)
		made <- result{file, err}
	}()
	r := <-made
	return r.file, r.err
}

func openTun(namespace string) (*os.File, error) {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter %s: %w", namespace, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("tun0")
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make a tun device: %w", err)
	}
	return os.NewFile(uintptr(fd), "tun0"), nil
}
