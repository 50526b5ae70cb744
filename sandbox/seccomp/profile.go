// Package seccomp holds the system call profile of Skerry's sandboxes as an OCI
// document and compiles such documents to BPF, for runtimes that (like
// bubblewrap) want the program itself.
package seccomp

import (
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// denied are system calls that no sandboxed program needs: those that change
// the host or the name spaces, reach into other processes, or expose large and
// seldom tested parts of the kernel. Most need a capability that the sandbox
// lacks anyway; the profile is a second wall.
var denied = []string{
	// Name spaces and mounts.
	"unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot",
	"open_tree", "open_tree_attr", "move_mount", "fsopen", "fsmount", "fsconfig", "fspick", "mount_setattr",
	// The kernel itself.
	"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
	"bpf", "perf_event_open", "reboot", "syslog", "acct", "swapon", "swapoff", "iopl", "ioperm", "vhangup", "_sysctl", "sysfs", "uselib", "ustat",
	"nfsservctl", "lookup_dcookie", "fanotify_init", "quotactl", "quotactl_fd",
	"settimeofday", "stime", "clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "adjtimex",
	// Keys, which are not divided by name space.
	"add_key", "request_key", "keyctl",
	// Large attack surfaces.
	"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd",
	// Other processes.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
	// Files outside of the mount name space.
	"name_to_handle_at", "open_by_handle_at",
}

// cloneNamespaces are the flags of clone that make a name space. CLONE_NEWTIME
// is no flag of clone: its bit is part of the exit signal there.
var cloneNamespaces = []uint64{
	unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC,
	unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET,
}

// low32 compares what the kernel looks at where it takes a 32-bit value: a
// filter that compares 64 bits is evaded by a set upper bit.
const low32 = 0xffffffff

// Default is the profile of all sandboxes. It allows what it doesn't name, as
// research software uses much of the interface; Compile answers ENOSYS for
// calls newer than its tables.
func Default() *specs.LinuxSeccomp {
	rules := []specs.LinuxSyscall{deny(unix.EPERM, denied...)}
	for _, flag := range cloneNamespaces {
		rules = append(rules, when(deny(unix.EPERM, "clone"), arg(0, specs.OpMaskedEqual, flag, flag)))
	}
	// clone3's flags lie in memory, where no filter sees them. The C libraries
	// fall back to clone.
	rules = append(rules, deny(unix.ENOSYS, "clone3"))
	for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX} {
		rules = append(rules, when(deny(unix.EPERM, "ioctl"), arg(1, specs.OpMaskedEqual, low32, request)))
	}
	rules = append(rules, sockets()...)
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
		Syscalls:      append(rules, personalities()...),
	}
}

// sockets leaves the families unix, inet, inet6 and, of netlink, the routing
// protocol, by which the C library looks for interfaces.
func sockets() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	family := func(op specs.LinuxSeccompOperator, value uint64) {
		rules = append(rules, when(deny(unix.EAFNOSUPPORT, "socket", "socketpair"), arg(0, op, value, 0)))
	}
	for f := uint64(unix.AF_INET + 1); f < unix.AF_NETLINK; f++ {
		if f != unix.AF_INET6 {
			family(specs.OpEqualTo, f)
		}
	}
	family(specs.OpGreaterThan, unix.AF_NETLINK)
	return append(rules, when(deny(unix.EPROTONOSUPPORT, "socket"),
		arg(0, specs.OpEqualTo, unix.AF_NETLINK, 0),
		arg(2, specs.OpNotEqual, unix.NETLINK_ROUTE, 0)))
}

// personalities allows the plain ones and the query; the rest switch off
// address space randomization and the like.
func personalities() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, p := range []uint64{0, 8, low32} {
		allow := specs.LinuxSyscall{Names: []string{"personality"}, Action: specs.ActAllow}
		rules = append(rules, when(allow, arg(0, specs.OpMaskedEqual, low32, p)))
	}
	return append(rules, deny(unix.EPERM, "personality"))
}

func deny(errno syscall.Errno, names ...string) specs.LinuxSyscall {
	ret := uint(errno)
	return specs.LinuxSyscall{Names: names, Action: specs.ActErrno, ErrnoRet: &ret}
}

func arg(index uint, op specs.LinuxSeccompOperator, value, two uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: op, Value: value, ValueTwo: two}
}

// when limits a rule to calls whose arguments match all of args.
func when(r specs.LinuxSyscall, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	r.Args = args
	return r
}
