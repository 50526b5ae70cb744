package egress

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Policy is what the executions that name it may reach, and how much of it.
type Policy struct {
	Name  string
	Allow []Rule
	// Headers that the gateway adds, each for the targets that its rule names.
	Headers []Header
	// MaxConnections at once of one execution.
	MaxConnections int
	// MaxBytesUp and MaxBytesDown of one execution in all; 0: no limit. They are
	// counted from the start of the gateway on.
	MaxBytesUp, MaxBytesDown int64
	// IdleTimeout ends a connection on which nothing moves, MaxDuration any.
	IdleTimeout, MaxDuration time.Duration
}

// MostConnections is the most that MaxConnections may be.
const MostConnections = 256

// Defaults for what a policy leaves at zero.
const (
	DefaultConnections = 64
	DefaultIdle        = 5 * time.Minute
	DefaultDuration    = 12 * time.Hour
)

func (p *Policy) withDefaults() *Policy {
	out := *p
	if out.MaxConnections == 0 {
		out.MaxConnections = DefaultConnections
	}
	if out.IdleTimeout == 0 {
		out.IdleTimeout = DefaultIdle
	}
	if out.MaxDuration == 0 {
		out.MaxDuration = DefaultDuration
	}
	return &out
}

// removed stands for a policy that the configuration no longer has while an
// execution that was started with it goes on: nothing is allowed.
func removed(name string) *Policy { return (&Policy{Name: name}).withDefaults() }

// allows says whether a rule names the target.
func (p *Policy) allows(t target) bool {
	for _, r := range p.Allow {
		if r.allows(t) {
			return true
		}
	}
	return false
}

// lists says whether the operator listed this very address and port.
func (p *Policy) lists(addr netip.Addr, port uint16) bool {
	return p.allows(target{addr: addr, port: port})
}

// maxShown bounds the rules that a denial tells.
const maxShown = 20

// describe tells an agent what is allowed.
func (p *Policy) describe() string {
	if len(p.Allow) == 0 {
		return "nothing"
	}
	var shown []string
	for _, r := range p.Allow[:min(len(p.Allow), maxShown)] {
		shown = append(shown, r.String())
	}
	text := strings.Join(shown, ", ")
	if more := len(p.Allow) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
