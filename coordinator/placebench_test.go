package coordinator

import (
	"fmt"
	"testing"

	"skerry.internal/coordinator/placement"
	"skerry.internal/coordinator/state"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// BenchmarkPlaceAmongMany is what choosing one of 10,000 runners costs.
func BenchmarkPlaceAmongMany(b *testing.B) {
	c := &Coordinator{state: state.New(), links: newLinkSet()}
	for n := range 10_000 {
		name := fmt.Sprintf("runner-%05d", n)
		fill(b, c, &raftlogv1.Command{Id: name, Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{Name: name, Slots: 8,
			Labels: map[string]string{"zone": "a", "rack": "b"}}}})
		c.links.byName[name] = &runnerLink{name: name}
	}
	for b.Loop() {
		if placement.Best(c.runnersFor(c.state.Read(), "ann"), placement.Request{}) == "" {
			b.Fatal("no runner")
		}
	}
}
