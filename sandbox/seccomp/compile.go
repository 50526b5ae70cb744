package seccomp

import (
	"encoding/binary"
	"fmt"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
)

// Offsets in struct seccomp_data, and the BPF return values of the kernel.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16

	retKillProcess = 0x80000000
	retKillThread  = 0x00000000
	retErrno       = 0x00050000
	retLog         = 0x7ffc0000
	retAllow       = 0x7fff0000
)

const (
	eperm  = 1
	enosys = 38
	// x32Bit marks the x32 interface on amd64: other numbers for the same
	// calls, by which a filter could be passed.
	x32Bit = 0x40000000
	// firstX32 is where the numbers end that mean the same everywhere.
	firstX32 = 512
)

// Compile turns an OCI profile into a BPF program for a Go architecture
// ("amd64", "arm64") in the form that the kernel and bubblewrap take. Rules are
// tried in order and the first that matches decides; a rule's arguments must
// all match. Calls of a foreign architecture or the x32 interface kill the
// process, and calls newer than the tables of this package give ENOSYS.
// What the profile asks for and BPF alone can't give is refused.
func Compile(profile *specs.LinuxSeccomp, goarch string) ([]byte, error) {
	info, err := tableFor(goarch)
	if err != nil {
		return nil, err
	}
	if profile.ListenerPath != "" || len(profile.Flags) > 0 {
		return nil, fmt.Errorf("seccomp: flags and listeners are not supported")
	}
	def, err := action(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	program := prologue(info, goarch)
	for _, rule := range profile.Syscalls {
		block, err := compileRule(info, rule)
		if err != nil {
			return nil, err
		}
		program = append(program, block...)
	}
	return assemble(append(program, bpf.RetConstant{Val: def}))
}

func tableFor(goarch string) (*arch.Info, error) {
	switch goarch {
	case "amd64":
		return arch.X86_64, nil
	case "arm64":
		return arch.AARCH64, nil
	}
	return nil, fmt.Errorf("seccomp: no system call table for architecture %q", goarch)
}

func prologue(info *arch.Info, goarch string) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: retKillProcess},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}
	if goarch == "amd64" {
		p = append(p,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
			bpf.RetConstant{Val: retKillProcess})
	}
	return append(p,
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newest(info), SkipTrue: 1},
		bpf.RetConstant{Val: retErrno | enosys})
}

// newest is the highest number in the table that is common to architectures.
func newest(info *arch.Info) uint32 {
	n := 0
	for number := range info.SyscallNumbers {
		if number < firstX32 {
			n = max(n, number)
		}
	}
	return uint32(n)
}

// compileRule expects the call's number in the accumulator and leaves it there
// if the rule does not match.
func compileRule(info *arch.Info, rule specs.LinuxSyscall) ([]bpf.Instruction, error) {
	ret, err := action(rule.Action, rule.ErrnoRet)
	if err != nil {
		return nil, err
	}
	var out []bpf.Instruction
	for _, name := range rule.Names {
		number, ok := info.SyscallNames[name]
		if !ok {
			if !knownAnywhere(name) {
				return nil, fmt.Errorf("seccomp: unknown system call %q", name)
			}
			continue // not on this architecture
		}
		block, err := matchArgs(rule.Args, ret)
		if err != nil {
			return nil, fmt.Errorf("seccomp: %s: %w", name, err)
		}
		if len(block) > 255 {
			return nil, fmt.Errorf("seccomp: %s: too many argument conditions", name)
		}
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(number), SkipFalse: uint8(len(block))})
		out = append(out, block...)
	}
	return out, nil
}

func knownAnywhere(name string) bool {
	for _, info := range []*arch.Info{arch.X86_64, arch.AARCH64, arch.I386, arch.ARM} {
		if _, ok := info.SyscallNames[name]; ok {
			return true
		}
	}
	return false
}

func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch a {
	case specs.ActAllow:
		return retAllow, nil
	case specs.ActErrno:
		if errno == nil {
			return retErrno | eperm, nil
		}
		if *errno > 4095 {
			return 0, fmt.Errorf("seccomp: errno %d is over 4095", *errno)
		}
		return retErrno | uint32(*errno), nil
	case specs.ActKill, specs.ActKillThread:
		return retKillThread, nil
	case specs.ActKillProcess:
		return retKillProcess, nil
	case specs.ActLog:
		return retLog, nil
	}
	return 0, fmt.Errorf("seccomp: action %q is not supported", a)
}

// assemble gives the array of struct sock_filter, in the byte order of both
// supported architectures.
func assemble(program []bpf.Instruction) ([]byte, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	if len(raw) > 4096 {
		return nil, fmt.Errorf("seccomp: program of %d instructions, the kernel takes 4096", len(raw))
	}
	out := make([]byte, 0, 8*len(raw))
	for _, in := range raw {
		out = binary.LittleEndian.AppendUint16(out, in.Op)
		out = append(out, in.Jt, in.Jf)
		out = binary.LittleEndian.AppendUint32(out, in.K)
	}
	return out, nil
}
