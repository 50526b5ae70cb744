package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Processors spreads executions with a CPU limit over the processors that the
// daemon itself may use. The quota of the limit's control group is what holds;
// the choice only makes code see as many processors as it has (F20).
type Processors struct {
	allowed []int

	mu   sync.Mutex
	load map[int]float64 // CPUs promised to executions on each processor
	held map[string]share
}

type share struct {
	set  []int
	each float64
}

// NewProcessors starts from the calling process's affinity.
func NewProcessors() (*Processors, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("find processors: %w", err)
	}
	p := &Processors{load: map[int]float64{}, held: map[string]share{}}
	for cpu := 0; len(p.allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			p.allowed = append(p.allowed, cpu)
		}
	}
	return p, nil
}

// Take gives the execution the least used processors, as many as the limit
// rounded up; nil where that is all or there is no limit. One that has some
// already keeps them.
func (p *Processors) Take(id string, cpus float64) []int {
	n := int(math.Ceil(cpus))
	if cpus <= 0 || n >= len(p.allowed) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.held[id]; len(s.set) == n {
		return s.set
	}
	order := slices.Clone(p.allowed)
	slices.SortStableFunc(order, func(a, b int) int {
		switch d := p.load[a] - p.load[b]; {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	})
	set := order[:n]
	slices.Sort(set)
	p.hold(id, set, cpus)
	return set
}

// Resume notes what an execution of an earlier daemon was given.
func (p *Processors) Resume(id string, set []int, cpus float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(set) > 0 {
		p.hold(id, set, cpus)
	}
}

func (p *Processors) hold(id string, set []int, cpus float64) {
	p.drop(id)
	s := share{set, cpus / float64(len(set))}
	for _, cpu := range set {
		p.load[cpu] += s.each
	}
	p.held[id] = s
}

// Release may be called for any execution, at its end.
func (p *Processors) Release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(id)
}

func (p *Processors) drop(id string) {
	s := p.held[id]
	for _, cpu := range s.set {
		if p.load[cpu] -= s.each; p.load[cpu] < 1e-6 {
			delete(p.load, cpu)
		}
	}
	delete(p.held, id)
}

// threads is how many threads libraries are told to start; 0: nothing is said.
func (p Policy) threads() int {
	switch {
	case p.Limits.CPUs <= 0:
		return p.ThreadsHint
	case len(p.CPUSet) > 0:
		return len(p.CPUSet)
	}
	return int(math.Ceil(p.Limits.CPUs))
}

// onlineFile is where the C library, and so Python's os.cpu_count, looks how
// many processors there are. It does not ask for the affinity.
const onlineFile = "/sys/devices/system/cpu/online"

// tellProcessors binds a file over onlineFile that says what the code has.
func (h *Host) tellProcessors(p Policy) (Policy, error) {
	n := len(p.CPUSet)
	if n == 0 {
		return p, nil
	}
	path := filepath.Join(h.config.StateDir, "online-"+strconv.Itoa(n))
	if _, err := os.Stat(path); err != nil {
		if err := writeOnline(path, n); err != nil {
			return p, fmt.Errorf("tell processors: %w", err)
		}
	}
	p.ReadOnly = append(slices.Clone(p.ReadOnly), Bind{Source: path, Target: onlineFile})
	return p, nil
}

func writeOnline(path string, n int) error {
	text := "0\n"
	if n > 1 {
		text = fmt.Sprintf("0-%d\n", n-1)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".online-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if cerr := f.Chmod(0o444); err == nil {
		err = cerr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
