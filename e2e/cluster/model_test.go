package cluster

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The history is checked thing by thing: a token, an agent's workspace, a timer,
// a transfer. A thing is absent, then it has a value, which may move on as the
// thing's own life has it, then it is gone.

type action string

const (
	create  action = "create"
	destroy action = "destroy"
	observe action = "observe"
)

const (
	absent = "absent"
	gone   = "gone"
)

// step is one operation on one thing.
type step struct {
	thing  string
	action action
}

// seen is what an operation told.
type seen struct {
	kind kind
	// value that was observed or created; "" when it was not told.
	value string
}

// things says what values the things of a name can have.
type things struct {
	// values that a creation may give, when it does not tell.
	values []string
	// rank of values that a thing goes through by itself, if it does: what has a
	// higher one may follow. What is not listed is its end.
	rank map[string]int
}

var kinds = map[string]things{
	"token":     {values: []string{"valid"}},
	"workspace": {values: []string{"r1", "r2", "r3"}},
	"timer":     {values: []string{"pending"}},
	"transfer":  {values: []string{"queued"}, rank: map[string]int{"queued": 1, "running": 2}},
}

// ended is the rank of a state that nothing follows.
const ended = 3

// moves reports whether a thing may go from one value to another by itself.
func (k things) moves(from, to string) bool {
	if k.rank == nil || from == absent || to == absent || from == gone {
		return false
	}
	rank := func(value string) int {
		if r := k.rank[value]; r != 0 {
			return r
		}
		return ended
	}
	return rank(to) > rank(from)
}

func kindOf(thing string) things {
	name, _, _ := strings.Cut(thing, "/")
	return kinds[name]
}

var model = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (out [][]porcupine.Operation) {
		at := map[string]int{}
		for _, op := range history {
			thing := op.Input.(step).thing
			i, ok := at[thing]
			if !ok {
				i = len(out)
				at[thing] = i
				out = append(out, nil)
			}
			out[i] = append(out[i], op)
		}
		return out
	},
	Init: func() []any { return []any{absent} },
	Step: func(state, input, output any) []any {
		return next(state.(string), input.(step), output.(seen))
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%s %s -> %v", input.(step).action, input.(step).thing, output)
	},
	DescribeState: func(state any) string { return fmt.Sprint(state) },
}).ToModel()

// next are the states that an operation may leave, none: it cannot have
// happened in state.
func next(state string, s step, out seen) []any {
	k := kindOf(s.thing)
	switch s.action {
	case create:
		return afterCreate(state, k, out)
	case destroy:
		switch {
		case out.kind == refused && out.value == absent:
			return only(state, state == absent || state == gone)
		case out.kind == refused:
			return only(state, true)
		case out.kind == unknown:
			return either(state, gone)
		case state == absent:
			return nil
		}
		return only(gone, true)
	default:
		return afterObserve(state, k, out)
	}
}

func afterCreate(state string, k things, out seen) []any {
	var made []any
	for _, value := range k.values {
		if out.value == "" || out.value == value {
			made = append(made, value)
		}
	}
	switch {
	case state != absent: // it was made by an earlier one, which may have told nothing
		return only(state, out.value == "" || out.kind != done || state == out.value || state == gone)
	case out.kind == refused:
		return only(absent, true)
	case out.kind == unknown:
		return append(made, absent)
	}
	return made
}

func afterObserve(state string, k things, out seen) []any {
	if out.kind != done { // it saw nothing
		return only(state, true)
	}
	if k.moves(state, out.value) {
		return only(out.value, true)
	}
	if out.value == absent {
		return only(state, state == absent || state == gone)
	}
	return only(state, state == out.value)
}

func only(state string, possible bool) []any {
	if !possible {
		return nil
	}
	return []any{state}
}

func either(a, b string) []any {
	if a == b {
		return []any{a}
	}
	return []any{a, b}
}
