package coordinator

import (
	"testing"
)

func TestFleetStarts(t *testing.T) {
	f := startFleet(t, 3)
	for _, n := range f.running() {
		if _, err := n.token("agent", "a-"+n.name); err != nil {
			t.Errorf("through %s: %v", n.name, err)
		}
	}
}
