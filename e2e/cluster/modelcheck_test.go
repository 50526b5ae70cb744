package cluster

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// Histories that no right cluster has must be found out, or the check of the
// others means nothing.
func TestModelTellsRightFromWrong(t *testing.T) {
	op := func(from, to int64, thing string, a action, out seen) porcupine.Operation {
		return porcupine.Operation{ClientId: int(from), Input: step{thing, a}, Output: out, Call: from, Return: to}
	}
	ok := func(value string) seen { return seen{done, value} }
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"used, revoked, refused": {[]porcupine.Operation{op(0, 1, "token/a", create, ok("valid")), op(2, 3, "token/a", observe, ok("valid")),
			op(4, 5, "token/a", destroy, ok("")), op(6, 7, "token/a", observe, ok(absent))}, true},
		"good after it was revoked": {[]porcupine.Operation{op(0, 1, "token/a", create, ok("valid")), op(2, 3, "token/a", destroy, ok("")),
			op(4, 5, "token/a", observe, ok("valid"))}, false},
		"good while it is revoked": {[]porcupine.Operation{op(0, 1, "token/a", create, ok("valid")), op(2, 5, "token/a", destroy, ok("")),
			op(3, 4, "token/a", observe, ok("valid"))}, true},
		"lost after it was acknowledged": {[]porcupine.Operation{op(0, 1, "timer/a", create, ok("pending")), op(2, 3, "timer/a", observe, ok(absent))}, false},
		"an unknown one, never made": {[]porcupine.Operation{op(0, forever, "timer/a", create, seen{unknown, ""}), op(2, 3, "timer/a", observe, ok(absent)),
			op(4, 5, "timer/a", observe, ok(absent))}, true},
		"an unknown one, made late": {[]porcupine.Operation{op(0, forever, "timer/a", create, seen{unknown, ""}), op(2, 3, "timer/a", observe, ok(absent)),
			op(4, 5, "timer/a", observe, ok("pending"))}, true},
		"an unknown one, made and lost": {[]porcupine.Operation{op(0, forever, "timer/a", create, seen{unknown, ""}), op(2, 3, "timer/a", observe, ok("pending")),
			op(4, 5, "timer/a", observe, ok(absent))}, false},
		"placed on two runners": {[]porcupine.Operation{op(0, 3, "workspace/a", create, ok("")), op(1, 2, "workspace/a", create, ok("")),
			op(4, 5, "workspace/a", observe, ok("r1")), op(6, 7, "workspace/a", observe, ok("r2"))}, false},
		"a transfer goes on":           {[]porcupine.Operation{op(0, 1, "transfer/a", create, ok("")), op(2, 3, "transfer/a", observe, ok("running")), op(4, 5, "transfer/a", observe, ok("completed"))}, true},
		"a transfer goes back":         {[]porcupine.Operation{op(0, 1, "transfer/a", create, ok("")), op(2, 3, "transfer/a", observe, ok("running")), op(4, 5, "transfer/a", observe, ok("queued"))}, false},
		"a transfer has two ends":      {[]porcupine.Operation{op(0, 1, "transfer/a", create, ok("")), op(2, 3, "transfer/a", observe, ok("completed")), op(4, 5, "transfer/a", observe, ok("failed"))}, false},
		"cancelled before it was made": {[]porcupine.Operation{op(0, 1, "timer/a", destroy, ok("")), op(2, 3, "timer/a", create, ok("pending"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := porcupine.CheckOperations(model, c.ops); got != c.want {
				t.Errorf("judged %v", got)
			}
		})
	}
}
