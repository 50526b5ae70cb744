package seccomp

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Compiler is Compile with a memory: a host runs few different profiles. It is
// safe for concurrent use.
type Compiler struct {
	goarch string

	mu       sync.Mutex
	programs map[string][]byte // by the profile's JSON
}

// NewCompiler compiles for a Go architecture.
func NewCompiler(goarch string) *Compiler {
	return &Compiler{goarch: goarch, programs: make(map[string][]byte)}
}

// Program gives the compiled profile, which the caller must not change.
func (c *Compiler) Program(profile *specs.LinuxSeccomp) ([]byte, error) {
	key, err := json.Marshal(profile)
	if err != nil {
		return nil, fmt.Errorf("encode seccomp profile: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.programs[string(key)]; ok {
		return p, nil
	}
	p, err := Compile(profile, c.goarch)
	if err != nil {
		return nil, err
	}
	c.programs[string(key)] = p
	return p, nil
}
