package seccomp

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
)

// A test of one half of an argument either goes on, or decides the comparison.
type verdict int

const (
	next  verdict = iota // look at what follows
	match                // the argument matches
	fail                 // the rule does not match
)

// step is one instruction of a comparison; for jumps, where to go then.
type step struct {
	in         bpf.Instruction
	cond       bpf.JumpTest
	val        uint32
	yes, no    verdict
	isJump     bool
	argumentID int
}

// matchArgs returns code that returns ret if all conditions hold and falls
// through otherwise, with the call's number back in the accumulator.
func matchArgs(args []specs.LinuxSeccompArg, ret uint32) ([]bpf.Instruction, error) {
	if len(args) == 0 {
		return []bpf.Instruction{bpf.RetConstant{Val: ret}}, nil
	}
	var steps []step
	for i, a := range args {
		s, err := compare(a)
		if err != nil {
			return nil, err
		}
		for j := range s {
			s[j].argumentID = i
		}
		steps = append(steps, s...)
	}
	out := link(steps)
	return append(out, bpf.RetConstant{Val: ret}, bpf.LoadAbsolute{Off: offNumber, Size: 4}), nil
}

// link turns the steps' verdicts into distances. Behind the last step stands
// the rule's return, and behind that the way out.
func link(steps []step) []bpf.Instruction {
	out := make([]bpf.Instruction, 0, len(steps)+2)
	distance := func(i int, v verdict) uint8 {
		switch v {
		case match:
			j := i + 1
			for j < len(steps) && steps[j].argumentID == steps[i].argumentID {
				j++
			}
			return uint8(j - i - 1)
		case fail:
			return uint8(len(steps) - i)
		}
		return 0
	}
	for i, s := range steps {
		if !s.isJump {
			out = append(out, s.in)
			continue
		}
		out = append(out, bpf.JumpIf{Cond: s.cond, Val: s.val, SkipTrue: distance(i, s.yes), SkipFalse: distance(i, s.no)})
	}
	return out
}

// compare is the 64-bit comparison of one argument in 32-bit steps.
func compare(a specs.LinuxSeccompArg) ([]step, error) {
	if a.Index > 5 {
		return nil, fmt.Errorf("argument index %d is over 5", a.Index)
	}
	low := step{in: bpf.LoadAbsolute{Off: offArgs + 8*uint32(a.Index), Size: 4}}
	high := step{in: bpf.LoadAbsolute{Off: offArgs + 8*uint32(a.Index) + 4, Size: 4}}
	hi, lo := uint32(a.Value>>32), uint32(a.Value)
	jump := func(cond bpf.JumpTest, val uint32, yes, no verdict) step {
		return step{cond: cond, val: val, yes: yes, no: no, isJump: true}
	}
	// ordered: decided by the high half if it differs, else by the low one.
	ordered := func(strict, last bpf.JumpTest) []step {
		return []step{high, jump(strict, hi, match, next), jump(bpf.JumpEqual, hi, next, fail), low, jump(last, lo, match, fail)}
	}
	switch a.Op {
	case specs.OpEqualTo:
		return []step{high, jump(bpf.JumpEqual, hi, next, fail), low, jump(bpf.JumpEqual, lo, match, fail)}, nil
	case specs.OpNotEqual:
		return []step{high, jump(bpf.JumpEqual, hi, next, match), low, jump(bpf.JumpEqual, lo, fail, match)}, nil
	case specs.OpGreaterThan:
		return ordered(bpf.JumpGreaterThan, bpf.JumpGreaterThan), nil
	case specs.OpGreaterEqual:
		return ordered(bpf.JumpGreaterThan, bpf.JumpGreaterOrEqual), nil
	case specs.OpLessThan:
		return ordered(bpf.JumpLessThan, bpf.JumpLessThan), nil
	case specs.OpLessEqual:
		return ordered(bpf.JumpLessThan, bpf.JumpLessOrEqual), nil
	case specs.OpMaskedEqual: // Value is the mask, ValueTwo what is left
		and := func(mask uint32) step { return step{in: bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}} }
		return []step{
			high, and(hi), jump(bpf.JumpEqual, uint32(a.ValueTwo>>32), next, fail),
			low, and(lo), jump(bpf.JumpEqual, uint32(a.ValueTwo), match, fail),
		}, nil
	}
	return nil, fmt.Errorf("operator %q is not supported", a.Op)
}
