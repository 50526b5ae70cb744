package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// transfers measures what it takes to bring a tree of which the receiver has
// an older state up to date: by a pull between two stores, and by rsync
// between two trees. The pull ends durable in the receiver's store; rsync
// ends in files that are not synced. So the whole way, snapshot, pull and
// restore, stands there too.
func (b *bench) transfers(ctx context.Context) error {
	links := []*link{loopback()}
	if l, err := delayed(ctx); err == nil {
		links = append(links, l)
		defer l.teardown()
	} else {
		fmt.Fprintln(os.Stderr, "left out, the link of 20 ms:", err)
	}
	t := &transfer{bench: b, times: make(map[string][]float64)}
	if _, err := t.cas(ctx, nil, "keygen", "key"); err != nil {
		return err
	}
	for i, l := range links {
		if err := t.first(ctx, i, l); err != nil {
			return err
		}
	}
	for round := range b.rounds {
		if err := b.editPart(b.path("tree"), uint64(round)); err != nil {
			return err
		}
		for i, l := range links {
			if err := t.again(ctx, round, i, l); err != nil {
				return err
			}
		}
	}
	return t.print(links)
}

type transfer struct {
	bench *bench
	times map[string][]float64
	what  []string
	tree  string
}

func (t *transfer) note(what string, l *link, tool string, start time.Time) {
	key := what + "|" + l.name + "|" + tool
	if !slices.Contains(t.what, key) {
		t.what = append(t.what, key)
	}
	took := time.Since(start).Seconds()
	t.times[key] = append(t.times[key], took)
	fmt.Fprintf(os.Stderr, "%s, %s, by %s: %.3f s\n", what, l.name, tool, took)
}

// cas runs a store command and decodes what it prints.
func (t *transfer) cas(ctx context.Context, prefix []string, args ...string) (map[string]any, error) {
	line := append(append(slices.Clone(prefix), t.bench.runnerd, "cas", "--json"), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Stderr = t.bench.dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	var v map[string]any
	return v, json.Unmarshal(out, &v)
}

func (t *transfer) snapshot(ctx context.Context) error {
	r, err := t.cas(ctx, nil, "snapshot", "tree", "--store", "a")
	if err == nil {
		t.tree, _ = r["digest"].(string)
	}
	return err
}

// first fills the receivers.
func (t *transfer) first(ctx context.Context, i int, l *link) error {
	if err := t.snapshot(ctx); err != nil {
		return err
	}
	if err := t.pull(ctx, "everything", i, l); err != nil {
		return err
	}
	return t.rsync(ctx, "everything", i, l)
}

// again brings them up to date.
func (t *transfer) again(ctx context.Context, round, i int, l *link) error {
	start := time.Now()
	if err := t.snapshot(ctx); err != nil {
		return err
	}
	if i == 0 {
		t.note("snapshot, 1 % changed", l, "skerry", start)
	}
	if err := t.pull(ctx, "1 % changed", i, l); err != nil {
		return err
	}
	if err := t.rsync(ctx, "1 % changed", i, l); err != nil {
		return err
	}
	if err := t.sync(ctx); err != nil {
		return err
	}
	start = time.Now()
	_, err := t.cas(ctx, nil, "restore", t.tree, fmt.Sprintf("out%d-%d", i, round), "--store", fmt.Sprint("b", i))
	t.note("restore of all of it, durable", l, "skerry", start)
	return err
}

func (t *transfer) sync(ctx context.Context) error {
	return exec.CommandContext(ctx, "sync", "-f", t.bench.dir).Run()
}

// server is a process that serves until it is stopped.
type server struct{ cmd *exec.Cmd }

func (s *server) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	_ = s.cmd.Wait()
}

func (t *transfer) pull(ctx context.Context, what string, i int, l *link) error {
	if _, err := os.Stat(t.bench.path("cert.pem")); errors.Is(err, os.ErrNotExist) && l.tls {
		if err := certify(l.host, t.bench.path("cert.pem"), t.bench.path("tls.pem")); err != nil {
			return err
		}
	}
	grant, err := t.cas(ctx, nil, "grant", "--key", "key", "--tree", t.tree, "--for", "bench")
	if err != nil {
		return err
	}
	token, _ := grant["grant"].(string)
	if err := os.WriteFile(t.bench.path("grant"), []byte(token), 0o600); err != nil {
		return err
	}
	if err := t.sync(ctx); err != nil {
		return err
	}
	s, url, err := t.serve(ctx, l)
	if err != nil {
		return err
	}
	defer s.stop()
	args := []string{"pull", "--from", url, "--grant", "@grant", "--store", fmt.Sprint("b", i), "--pin", "bench"}
	if l.tls {
		args = append(args, "--tls-ca", "cert.pem")
	}
	start := time.Now()
	r, err := t.cas(ctx, l.out, args...)
	if err == nil {
		t.note(what, l, "skerry pull", start)
		fmt.Fprintf(os.Stderr, "  %v bytes, %v directories, %v blobs\n", r["bytes"], r["directories"], r["blobs"])
	}
	return err
}

func (t *transfer) serve(ctx context.Context, l *link) (*server, string, error) {
	line := append(slices.Clone(l.in), t.bench.runnerd, "cas", "--json", "serve", "--store", "a", "--listen", l.host+":0", "--grant-key", "key.pub")
	if l.tls {
		line = append(line, "--tls-cert", "cert.pem", "--tls-key", "tls.pem")
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Stderr = t.bench.dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	s := &server{cmd}
	var ready struct{ URL string }
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&ready); err != nil {
		s.stop()
		return nil, "", fmt.Errorf("%q said nothing: %w", line, err)
	}
	return s, ready.URL, nil
}

// rsync measures rsync -a from a daemon.
func (t *transfer) rsync(ctx context.Context, what string, i int, l *link) error {
	if _, err := exec.LookPath("rsync"); err != nil {
		fmt.Fprintln(os.Stderr, "not installed: rsync")
		return nil
	}
	const port = "18730"
	config := fmt.Sprintf("use chroot = no\nport = %s\naddress = %s\n[tree]\npath = %s\nread only = yes\nuid = %d\ngid = %d\n",
		port, l.host, t.bench.path("tree"), os.Getuid(), os.Getgid())
	if err := os.WriteFile(t.bench.path("rsyncd.conf"), []byte(config), 0o600); err != nil {
		return err
	}
	line := append(slices.Clone(l.in), "rsync", "--daemon", "--no-detach", "--config=rsyncd.conf")
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Stderr = t.bench.dir, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	s := &server{cmd}
	defer s.stop()
	if err := errors.Join(t.listens(ctx, l, net.JoinHostPort(l.host, port)), t.sync(ctx)); err != nil {
		return err
	}
	line = append(slices.Clone(l.out), "rsync", "-a", fmt.Sprintf("rsync://%s:%s/tree/", l.host, port), fmt.Sprint("rsync", i))
	start := time.Now()
	cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = t.bench.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", line, err, out)
	}
	t.note(what, l, "rsync -a", start)
	err := t.sync(ctx)
	t.note(what+", synced", l, "rsync -a", start)
	return err
}

// listens waits until a daemon of l accepts connections.
func (t *transfer) listens(ctx context.Context, l *link, address string) error {
	host, port, _ := net.SplitHostPort(address)
	line := append(slices.Clone(l.out), "bash", "-c", fmt.Sprintf("for i in $(seq 100); do (exec 3<>/dev/tcp/%s/%s) 2>/dev/null && exit 0; sleep 0.05; done; exit 1", host, port))
	if err := exec.CommandContext(ctx, line[0], line[1:]...).Run(); err != nil {
		return fmt.Errorf("nothing listens on %s: %w", address, err)
	}
	return nil
}

// editPart writes other bytes into every hundredth file, beginning elsewhere
// each round.
func (b *bench) editPart(dir string, round uint64) error {
	r := rand.New(rand.NewPCG(11, round))
	for i := int(round*37) % 100; i < b.files; i += 100 {
		name := filepath.Join(dir, fmt.Sprintf("d%03d", i/1000), fmt.Sprintf("e%02d", i/50%20), fmt.Sprintf("f%06d", i))
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		content := make([]byte, max(1, info.Size()))
		words(r, content)
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// print writes medians, and the ratio of the pull's to rsync's.
func (t *transfer) print(links []*link) error {
	median := func(what string, l *link, tool string) float64 {
		all := slices.Sorted(slices.Values(t.times[what+"|"+l.name+"|"+tool]))
		if len(all) == 0 {
			return 0
		}
		return all[len(all)/2]
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| link\t| tool\t| seconds\t| pull / tool\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|")
	for _, key := range t.what {
		parts := strings.Split(key, "|")
		for _, l := range links {
			if l.name != parts[1] {
				continue
			}
			ratio, own := "", median(parts[0], l, parts[2])
			if parts[2] == "rsync -a" {
				ratio = fmt.Sprintf("%.2f", median(strings.TrimSuffix(parts[0], ", synced"), l, "skerry pull")/own)
			}
			fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %.2f\t| %s\t|\n", parts[0], parts[1], parts[2], own, ratio)
		}
	}
	return w.Flush()
}
