package seccomp

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// evaluate runs a compiled program on one call. The VM of x/net reads big
// endian words, so the words are stored that way, each at its own offset.
func evaluate(t testing.TB, program []byte, auditArch uint32, number uint32, args ...uint64) uint32 {
	t.Helper()
	var raw []bpf.RawInstruction
	for b := program; len(b) > 0; b = b[8:] {
		raw = append(raw, bpf.RawInstruction{Op: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])})
	}
	instructions, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program has unknown instructions")
	}
	// The VM caps return values at the packet's length: look them up instead.
	vm, err := bpf.NewVM(markReturns(instructions))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64+len(instructions))
	binary.BigEndian.PutUint32(data[offNumber:], number)
	binary.BigEndian.PutUint32(data[offArch:], auditArch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offArgs+8*i+4:], uint32(a>>32))
	}
	at, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return instructions[at].(bpf.RetConstant).Val
}

// markReturns makes each return give its own place in the program.
func markReturns(in []bpf.Instruction) []bpf.Instruction {
	out := append([]bpf.Instruction(nil), in...)
	for i, instruction := range out {
		if _, ok := instruction.(bpf.RetConstant); ok {
			out[i] = bpf.RetConstant{Val: uint32(i)}
		}
	}
	return out
}

func compileDefault(t testing.TB, goarch string) []byte {
	t.Helper()
	program, err := Compile(Default(), goarch)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func TestDefaultProfile(t *testing.T) {
	const eperm, enosys, eafnosupport = retErrno | 1, retErrno | 38, retErrno | uint32(unix.EAFNOSUPPORT)
	cases := []struct {
		call string
		args []uint64
		want uint32
	}{
		{"read", nil, retAllow},
		{"execve", nil, retAllow},
		{"openat2", nil, retAllow},
		{"futex_wait", nil, retAllow},
		{"mbind", nil, retAllow},
		{"unshare", nil, eperm},
		{"setns", nil, eperm},
		{"mount", nil, eperm},
		{"umount2", nil, eperm},
		{"open_tree", nil, eperm},
		{"mount_setattr", nil, eperm},
		{"bpf", nil, eperm},
		{"keyctl", nil, eperm},
		{"io_uring_setup", nil, eperm},
		{"userfaultfd", nil, eperm},
		{"ptrace", nil, eperm},
		{"pidfd_getfd", nil, eperm},
		{"clone3", nil, enosys},
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD | uint64(unix.SIGCHLD)}, retAllow},
		{"clone", []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, eperm},
		{"clone", []uint64{unix.CLONE_NEWNET | 1<<40}, eperm},
		{"ioctl", []uint64{0, unix.TCGETS}, retAllow},
		{"ioctl", []uint64{0, unix.TIOCSTI}, eperm},
		{"ioctl", []uint64{0, unix.TIOCSTI | 1<<32}, eperm},
		{"ioctl", []uint64{0, unix.TIOCLINUX}, eperm},
		{"socket", []uint64{unix.AF_UNIX, 1, 0}, retAllow},
		{"socket", []uint64{unix.AF_INET, 1, 0}, retAllow},
		{"socket", []uint64{unix.AF_INET6, 1, 0}, retAllow},
		{"socket", []uint64{unix.AF_NETLINK, 3, unix.NETLINK_ROUTE}, retAllow},
		{"socket", []uint64{unix.AF_NETLINK, 3, unix.NETLINK_AUDIT}, retErrno | uint32(unix.EPROTONOSUPPORT)},
		{"socket", []uint64{unix.AF_PACKET, 3, 0}, eafnosupport},
		{"socket", []uint64{unix.AF_ALG, 3, 0}, eafnosupport},
		{"socket", []uint64{unix.AF_VSOCK, 3, 0}, eafnosupport},
		{"socket", []uint64{unix.AF_VSOCK | 1<<32, 3, 0}, eafnosupport},
		{"socket", []uint64{unix.AF_KEY, 3, 0}, eafnosupport},
		{"socketpair", []uint64{unix.AF_UNIX, 1, 0}, retAllow},
		{"socketpair", []uint64{unix.AF_TIPC, 1, 0}, eafnosupport},
		{"personality", []uint64{0}, retAllow},
		{"personality", []uint64{0xffffffff}, retAllow},
		{"personality", []uint64{0x0040000}, eperm},
		{"personality", []uint64{0x0040000 | 1<<32}, eperm},
	}
	for goarch, info := range map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64} {
		program := compileDefault(t, goarch)
		t.Logf("%s: %d instructions", goarch, len(program)/8)
		for _, tc := range cases {
			number, ok := info.SyscallNames[tc.call]
			if !ok {
				t.Errorf("%s has no call %s", goarch, tc.call)
				continue
			}
			if got := evaluate(t, program, uint32(info.ID), uint32(number), tc.args...); got != tc.want {
				t.Errorf("%s %s %#x: got %#x, want %#x", goarch, tc.call, tc.args, got, tc.want)
			}
		}
	}
}

func TestForeignInterfacesKill(t *testing.T) {
	program := compileDefault(t, "amd64")
	for name, tc := range map[string]struct {
		arch   *arch.Info
		number uint32
		want   uint32
	}{
		"i386":         {arch.I386, 1, retKillProcess},
		"arm64":        {arch.AARCH64, 1, retKillProcess},
		"x32":          {arch.X86_64, x32Bit | 1, retKillProcess},
		"newer calls":  {arch.X86_64, 500, retErrno | enosys},
		"x32 only":     {arch.X86_64, 520, retErrno | enosys},
		"minus one":    {arch.X86_64, 0xffffffff, retKillProcess},
		"the plain 0":  {arch.X86_64, 0, retAllow},
		"newest known": {arch.X86_64, 462, retAllow},
	} {
		t.Run(name, func(t *testing.T) {
			if got := evaluate(t, program, uint32(tc.arch.ID), tc.number); got != tc.want {
				t.Errorf("got %#x, want %#x", got, tc.want)
			}
		})
	}
}

func TestOperators(t *testing.T) {
	values := []uint64{0, 1, 5, 6, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 5, 5 << 32, 1<<63 + 7, 1<<64 - 1}
	holds := map[specs.LinuxSeccompOperator]func(a, v uint64) bool{
		specs.OpEqualTo:      func(a, v uint64) bool { return a == v },
		specs.OpNotEqual:     func(a, v uint64) bool { return a != v },
		specs.OpLessThan:     func(a, v uint64) bool { return a < v },
		specs.OpLessEqual:    func(a, v uint64) bool { return a <= v },
		specs.OpGreaterThan:  func(a, v uint64) bool { return a > v },
		specs.OpGreaterEqual: func(a, v uint64) bool { return a >= v },
		specs.OpMaskedEqual:  func(a, v uint64) bool { return a&v == 5 },
	}
	for op, want := range holds {
		for _, v := range values {
			profile := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
				when(deny(7, "read"), arg(3, specs.OpEqualTo, 9, 0), arg(4, op, v, 5)),
				deny(8, "read"),
			}}
			program, err := Compile(profile, "amd64")
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range values {
				expect := uint32(retErrno | 8)
				if want(a, v) {
					expect = retErrno | 7
				}
				if got := evaluate(t, program, uint32(arch.X86_64.ID), 0, 0, 0, 0, 9, a); got != expect {
					t.Errorf("%#x %s %#x: got %#x, want %#x", a, op, v, got, expect)
				}
			}
			if got := evaluate(t, program, uint32(arch.X86_64.ID), 0, 0, 0, 0, 8, v); got != retErrno|8 {
				t.Errorf("the first condition was not needed: %#x", got)
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	big := uint(5000)
	for name, tc := range map[string]struct {
		profile specs.LinuxSeccomp
		goarch  string
		say     string
	}{
		"unknown call":     {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{deny(1, "no_such_call")}}, "amd64", "no_such_call"},
		"unknown action":   {specs.LinuxSeccomp{DefaultAction: specs.ActNotify}, "amd64", "ACT_NOTIFY"},
		"no action":        {specs.LinuxSeccomp{}, "amd64", "action"},
		"unknown arch":     {specs.LinuxSeccomp{DefaultAction: specs.ActAllow}, "riscv64", "riscv64"},
		"listener":         {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/x"}, "amd64", "listener"},
		"flags":            {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}}, "amd64", "flags"},
		"errno too large":  {specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &big}, "amd64", "4095"},
		"unknown operator": {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{when(deny(1, "read"), arg(0, "SCMP_CMP_X", 0, 0))}}, "amd64", "SCMP_CMP_X"},
		"argument index":   {specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{when(deny(1, "read"), arg(6, specs.OpEqualTo, 0, 0))}}, "amd64", "index 6"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compile(&tc.profile, tc.goarch); err == nil || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("got %v, want an error that says %q", err, tc.say)
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(Default(), runtime.GOARCH); err != nil {
			b.Fatal(err)
		}
	}
}
