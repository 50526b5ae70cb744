// Command casbench measures the content store beside restic, borg, casync, git, rsync and
// find on one generated tree, and prints a table. Peers that are not
// installed are left out. Nothing is deleted between the runs, since ext4
// makes the next files' creation slow for a while after many deletions.
//
//	go run ./deploy/casbench --runnerd bin/runnerd --dir /var/tmp/bench
//
// With --objects N it measures a store of N tiny files instead, for itself:
// time, memory and space.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	b := &bench{}
	flag.StringVar(&b.runnerd, "runnerd", "bin/runnerd", "the command to measure")
	flag.StringVar(&b.dir, "dir", "", "an empty directory on the disk to measure; it is left as it is afterwards")
	flag.IntVar(&b.files, "files", 100_000, "files in the tree")
	flag.Int64Var(&b.bytes, "bytes", 600_000_000, "their bytes together, about")
	flag.BoolVar(&b.transfer, "transfer", false, "measure transfers between two stores instead, beside rsync; over network namespaces too, as root")
	flag.IntVar(&b.rounds, "rounds", 3, "transfers of each kind; the median counts")
	flag.IntVar(&b.objects, "objects", 0, "measure a tree of so many files of 20 to 200 bytes instead, with memory and space")
	flag.Int64Var(&b.large, "large", 0, "bytes of one large file that is measured beside the tree, such as 4294967296; 0: none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "casbench:", err)
		os.Exit(1)
	}
}

type bench struct {
	runnerd, dir string
	files        int
	objects      int
	bytes, large int64
	rows         []row
	transfer     bool
	rounds       int
}

type row struct {
	what, tool string
	seconds    float64
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.dir == "" {
		return errors.New("--dir is missing; name an empty directory")
	}
	if b.runnerd, err = filepath.Abs(b.runnerd); err != nil {
		return err
	}
	if b.objects > 0 {
		return b.runObjects(ctx)
	}
	if err := b.generate(b.path("tree")); err != nil {
		return err
	}
	if b.transfer {
		return b.transfers(ctx)
	}
	steps := b.steps()
	if b.large > 0 {
		if err := b.scribble(0, b.large, 0); err != nil {
			return err
		}
		steps = append(steps, b.largeSteps()...)
	}
	for _, s := range steps {
		if s.prepare != nil {
			if err := s.prepare(); err != nil {
				return err
			}
		}
		if err := b.measure(ctx, s); err != nil {
			return err
		}
	}
	return b.print()
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// step is one measured command, run by a shell in the bench's directory.
type step struct {
	what, tool, command string
	prepare             func() error
}

func (b *bench) steps() []step {
	cas := "'" + b.runnerd + "' cas --store s "
	git := "git --git-dir=gg/.git --work-tree=tree "
	edit := func() error { return b.edit(b.path("tree")) }
	return []step{
		{"snapshot, first", "skerry", cas + "snapshot tree", nil},
		{"snapshot, first", "restic", "restic init -q -r rr && restic backup -q -r rr tree && sync -f rr", nil},
		{"snapshot, first", "borg", "borg init -e none bb && borg create bb::a tree && sync -f bb", nil},
		{"snapshot, first", "casync", "casync make --store=cc.castr a.caidx tree && sync -f .", nil},
		{"snapshot, first", "git", "git init -q gg && " + git + "add -A && sync -f gg", nil},
		{"snapshot, no change", "skerry", cas + "snapshot tree", nil},
		{"snapshot, no change", "find", "find tree -printf '%p %s %T@\\n' >list", nil},
		{"snapshot, no change", "restic", "restic backup -q -r rr tree", nil},
		{"snapshot, no change", "borg", "borg create bb::b tree", nil},
		{"snapshot, no change", "casync", "casync make --store=cc.castr b.caidx tree", nil},
		{"snapshot, no change", "git", git + "add -A", nil},
		{"snapshot, 10 files changed", "skerry", cas + "snapshot tree", edit},
		{"snapshot, 10 files changed", "restic", "restic backup -q -r rr tree", nil},
		{"snapshot, 10 files changed", "borg", "borg create bb::c tree", nil},
		{"snapshot, 10 files changed", "casync", "casync make --store=cc.castr c.caidx tree", nil},
		{"snapshot, 10 files changed", "git", git + "add -A", nil},
		{"restore, durable", "skerry", cas + "restore cli:$PWD/tree out.skerry", nil},
		{"restore, durable", "rsync", "rsync -a tree/ out.rsync/ && sync -f out.rsync", nil},
		{"restore, durable", "restic", "restic restore -q latest -r rr --target out.restic && sync -f out.restic", nil},
		{"restore, durable", "borg", "mkdir out.borg && cd out.borg && borg extract ../bb::c && sync -f .", nil},
		{"restore, durable", "casync", "casync extract --store=cc.castr c.caidx out.casync && sync -f out.casync", nil},
		{"restore, durable", "git", "mkdir out.git && git --git-dir=gg/.git --work-tree=out.git checkout-index -a && sync -f out.git", nil},
		{"snapshot of the restored tree", "skerry", cas + "snapshot out.skerry", nil},
		{"verify", "skerry", cas + "verify", nil},
		{"verify", "restic", "restic check -q -r rr --read-data", nil},
		{"verify", "borg", "borg check --verify-data bb", nil},
	}
}

// measure runs a step after what went before reached the disk.
func (b *bench) measure(ctx context.Context, s step) error {
	if _, err := exec.LookPath(s.tool); err != nil && s.tool != "skerry" {
		fmt.Fprintln(os.Stderr, "not installed:", s.tool)
		return nil
	}
	if err := exec.CommandContext(ctx, "sync", "-f", b.dir).Run(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", s.command)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "RESTIC_PASSWORD=bench", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes",
		"RESTIC_CACHE_DIR="+b.path("restic-cache"), "BORG_BASE_DIR="+b.path("borg-base"))
	start := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(start).Seconds()
	if err != nil {
		return fmt.Errorf("%s by %s: %w: %s", s.what, s.tool, err, strings.TrimSpace(string(out)))
	}
	b.rows = append(b.rows, row{s.what, s.tool, took})
	fmt.Fprintf(os.Stderr, "%s by %s: %.2f s\n", s.what, s.tool, took)
	return nil
}

// print writes seconds, and the ratio of ours to each peer's.
func (b *bench) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| tool\t| seconds\t| skerry / tool\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|")
	ours := make(map[string]float64)
	for _, r := range b.rows {
		if r.tool == "skerry" {
			ours[r.what] = r.seconds
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %.2f\t| %.2f\t|\n", r.what, r.tool, r.seconds, ours[r.what]/r.seconds)
	}
	return w.Flush()
}

// generate fills dir: 50 files a directory, half of them random bytes, half
// of words, sizes exponentially distributed. The seed is fixed.
func (b *bench) generate(dir string) error {
	r := rand.New(rand.NewPCG(7, 7))
	noise := rand.NewChaCha8([32]byte{7})
	mean := float64(b.bytes) / float64(b.files)
	for i := range b.files {
		at := filepath.Join(dir, fmt.Sprintf("d%03d", i/1000), fmt.Sprintf("e%02d", i/50%20))
		if i%50 == 0 {
			if err := os.MkdirAll(at, 0o755); err != nil {
				return err
			}
		}
		content := make([]byte, int(r.ExpFloat64()*mean))
		if i%2 == 0 {
			_, _ = noise.Read(content)
		} else {
			words(r, content)
		}
		if err := os.WriteFile(filepath.Join(at, fmt.Sprintf("f%06d", i)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func words(r *rand.Rand, b []byte) {
	for i := 0; i < len(b); {
		word := r.Uint64N(3000)
		for n := 2 + word%8; n > 0 && i < len(b); n, i = n-1, i+1 {
			b[i] = 'a' + byte((word*2654435761>>n)%26)
		}
		if i < len(b) {
			b[i] = ' '
			i++
		}
	}
}

// edit changes the first file of each of ten directories.
func (b *bench) edit(dir string) error {
	for i := range 10 {
		name := filepath.Join(dir, fmt.Sprintf("d%03d", i%max(1, b.files/1000)), "e00", fmt.Sprintf("f%06d", i%max(1, b.files/1000)*1000))
		if err := os.WriteFile(name, fmt.Appendf(nil, "edited %d", i), 0o644); err != nil {
			return err
		}
	}
	return nil
}
