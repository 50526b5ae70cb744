"""Hostile code: each attempt to get out of the sandbox prints one line, NAME: OUTCOME.

Arguments: a process id, a file, a TCP port and the name of an abstract socket of
the host, which the sandbox must not reach.
"""
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, struct, sys, termios

host_pid, host_file, host_port, host_socket = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)
amd64 = platform.machine() == "x86_64"
NUMBERS = dict(
    mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41), chroot=(161, 51), unshare=(272, 97), setns=(308, 268),
    clone=(56, 220), clone3=(435, 435), open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), fsconfig=(431, 431),
    fsmount=(432, 432), fspick=(433, 433), mount_setattr=(442, 442), ptrace=(101, 117), process_vm_readv=(310, 270),
    process_vm_writev=(311, 271), pidfd_open=(434, 434), pidfd_getfd=(438, 438), kcmp=(312, 272), add_key=(248, 217),
    request_key=(249, 218), keyctl=(250, 219), bpf=(321, 280), perf_event_open=(298, 241), io_uring_setup=(425, 425),
    io_uring_enter=(426, 426), io_uring_register=(427, 427), userfaultfd=(323, 282), kexec_load=(246, 104), kexec_file_load=(320, 294),
    init_module=(175, 105), finit_module=(313, 273), delete_module=(176, 106), swapon=(167, 224), swapoff=(168, 225), acct=(163, 89),
    settimeofday=(164, 170), clock_settime=(227, 112), clock_adjtime=(305, 266), sethostname=(170, 161), setdomainname=(171, 162),
    reboot=(169, 142), syslog=(103, 116), quotactl=(179, 60), personality=(135, 92), open_by_handle_at=(304, 265),
    name_to_handle_at=(303, 264), fanotify_init=(300, 262), capset=(126, 91), setuid=(105, 146), setgid=(106, 144), setresuid=(117, 147),
    setgroups=(116, 159), vhangup=(153, 58), mq_open=(240, 180), shmget=(29, 194), futex_future=(480, 480))


def call(name, *args):
    ctypes.set_errno(0)
    r = libc.syscall(NUMBERS[name][0 if amd64 else 1], *args)
    if r < 0:
        raise OSError(ctypes.get_errno(), name)
    return "ALLOWED"


def attempt(name, f, *args):
    try:
        outcome = f(*args)
    except OSError as e:
        outcome = errno.errorcode.get(e.errno, str(e.errno))
    print(f"{name}: {outcome}", flush=True)


def child(f):
    """Runs f in a child and tells how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if f() is None else 1)
        except OSError as e:
            os._exit(100 + min(e.errno, 100))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    code = os.WEXITSTATUS(status)
    return errno.errorcode.get(code - 100, code) if code > 100 else f"exit {code}"


def write(path, text=b"1"):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)
    return "WRITTEN"


def read(path):
    with open(path, "rb", 0) as f:
        return "READ" if f.read(64) else "empty"


def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(3)
        s.connect(address)
    return "CONNECTED"


def open_socket(*args):
    socket.socket(*args).close()
    return "OPENED"


# Mounts and name spaces.
attempt("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, 0)
attempt("remount /usr for writing", call, "mount", 0, b"/usr", 0, 0x1020, 0)
attempt("bind mount", call, "mount", b"/proc", b"/tmp", 0, 0x1000, 0)
attempt("mount cgroup", call, "mount", b"none", b"/tmp", b"cgroup2", 0, 0)
attempt("mount proc", call, "mount", b"none", b"/tmp", b"proc", 0, 0)
attempt("umount /proc/sys", call, "umount2", b"/proc/sys", 2)
attempt("umount a masked path", call, "umount2", b"/proc/kcore", 2)
attempt("pivot_root", call, "pivot_root", b"/tmp", b"/tmp")
attempt("chroot", call, "chroot", b"/tmp")
for name in ("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"):
    attempt(name, call, name, -100, b"/", 0, 0, 0)
for name, flag in dict(user=0x10000000, mount=0x20000, net=0x40000000, pid=0x20000000, ipc=0x8000000, uts=0x4000000, cgroup=0x2000000).items():
    attempt("unshare " + name, call, "unshare", flag)
    attempt("clone " + name, call, "clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
attempt("unshare time", call, "unshare", 0x80)
attempt("clone3", call, "clone3", 0, 0)
attempt("setns", call, "setns", 0, 0)
attempt("setns of pid 1", lambda: os.open("/proc/1/ns/mnt", os.O_RDONLY) and "OPENED")

# Other processes.
attempt("ptrace pid 1", call, "ptrace", 16, 1, 0, 0)
attempt("ptrace seize", call, "ptrace", 0x4206, os.getppid(), 0, 0)
attempt("ptrace traceme", call, "ptrace", 0, 0, 0, 0)
attempt("process_vm_readv", call, "process_vm_readv", 1, 0, 0, 0, 0, 0)
attempt("process_vm_writev", call, "process_vm_writev", 1, 0, 0, 0, 0, 0)
attempt("pidfd_getfd", call, "pidfd_getfd", 0, 0, 0)
attempt("kcmp", call, "kcmp", 1, 1, 0, 0, 0)
for part in ("mem", "environ", "maps", "io", "stack", "syscall"):
    attempt("pid 1 " + part, read, "/proc/1/" + part)
attempt("write pid 1 mem", write, "/proc/1/mem")
attempt("pid 1 descriptors", lambda: str(os.listdir("/proc/1/fd")))
attempt("pid 1 root", lambda: str(os.listdir("/proc/1/root")))
attempt("pid 1 cwd", lambda: os.readlink("/proc/1/cwd"))


def kill_init():
    for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP):
        os.kill(1, s)
    with open("/proc/1/stat") as f:
        return "pid 1 goes on" if f.read().rsplit(")", 1)[1].split()[0] in "RSD" else "STOPPED"


attempt("kill pid 1", kill_init)
attempt("kill a host process", lambda: os.kill(host_pid, 0) or "FOUND")
attempt("see a host process", os.stat, f"/proc/{host_pid}/status")
attempt("processes", lambda: "own only" if len([p for p in os.listdir("/proc") if p.isdigit()]) <= 2 else "OTHERS")
attempt("host name", socket.gethostname)
attempt("system v memory", lambda: "none" if len(open("/proc/sysvipc/shm").readlines()) == 1 else "OTHERS")

# Files of the kernel.
for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/sysrq", "kernel/randomize_va_space", "vm/drop_caches",
             "vm/overcommit_memory", "fs/file-max", "user/max_user_namespaces", "net/ipv4/ip_forward"):
    attempt("sysctl " + path, write, "/proc/sys/" + path)
attempt("sysrq-trigger", write, "/proc/sysrq-trigger", b"c")
attempt("kcore", read, "/proc/kcore")
attempt("kernel keys", read, "/proc/keys")
attempt("timer_list", read, "/proc/timer_list")
attempt("acpi", lambda: "empty" if not os.listdir("/proc/acpi") else "READ")
attempt("kernel log", read, "/proc/kmsg")
attempt("uid_map", write, "/proc/self/uid_map", b"0 0 1\n")
attempt("oom_score_adj", write, "/proc/self/oom_score_adj", b"-1000")
attempt("sys", os.listdir, "/sys/fs/cgroup")
attempt("cgroup of init", write, "/proc/1/cgroup")
attempt("debugfs", os.listdir, "/sys/kernel/debug")

# System calls.
for name, args in dict(
        add_key=(b"user", b"x", b"y", 1, -3), request_key=(b"user", b"x", 0, -3), keyctl=(0, -3, 1), bpf=(0, 0, 0), perf_event_open=(0, 0, -1, -1, 0),
        io_uring_setup=(1, 0), io_uring_enter=(0, 0, 0, 0), io_uring_register=(0, 0, 0, 0), userfaultfd=(1,), kexec_load=(0, 0, 0, 0), kexec_file_load=(0, 0, 0, 0, 0),
        init_module=(0, 0, b""), finit_module=(0, b"", 0), delete_module=(b"x", 0), swapon=(b"/tmp/x", 0), swapoff=(b"/tmp/x",),
        acct=(b"/tmp/x",), settimeofday=(0, 0), clock_settime=(0, 0), sethostname=(b"x", 1), setdomainname=(b"x", 1),
        reboot=(0xfee1dead, 672274793, 0, 0), syslog=(3, 0, 0), quotactl=(0, 0, 0, 0), open_by_handle_at=(-100, 0, 0),
        name_to_handle_at=(-100, b"/", 0, 0, 0), fanotify_init=(0, 0), vhangup=(), futex_future=()).items():
    attempt(name, call, name, *args)
attempt("clock_adjtime", call, "clock_adjtime", 0, struct.pack("I", 1).ljust(208, b"\0"))
attempt("no randomisation", call, "personality", 0x40000)
attempt("read implies exec", call, "personality", 0x400000)


def foreign(code):
    """Runs machine code in a child."""
    def run():
        m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        m.write(code)
        ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
    return child(run)


if amd64:
    attempt("x32 call", child, lambda: libc.syscall(0x40000000 | 39) and None)
    attempt("i386 call", foreign, b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
else:
    print("x32 call: SIGSYS\ni386 call: SIGSYS")

# Users and privileges.
attempt("setuid 0", call, "setuid", 0)
attempt("setgid 0", call, "setgid", 0)
attempt("setresuid 0", call, "setresuid", 0, 0, 0)
attempt("setgroups", call, "setgroups", 1, struct.pack("I", 0))
attempt("capset", call, "capset", struct.pack("II", 0x20080522, 0), b"\xff" * 24)
attempt("ambient capability", lambda: "REFUSED" if libc.prctl(47, 2, 21, 0, 0) else "RAISED")
attempt("allow new privileges", lambda: "REFUSED" if libc.prctl(38, 0, 0, 0, 0) else "ALLOWED")
attempt("bounding set", lambda: "empty" if not any(libc.prctl(23, c, 0, 0, 0) > 0 for c in range(40)) else "CAPABILITIES")


def set_id():
    with open("suid", "wb") as to, open("/usr/bin/id", "rb") as f:
        to.write(f.read())
    os.chmod("suid", 0o6755)
    with os.popen("./suid -u; id -u") as p:
        return "same user" if len(set(p.read().split())) == 1 else "ANOTHER USER"


attempt("set-id file", set_id)
attempt("give a file away", lambda: open("gift", "w").close() or os.chown("gift", 0, 0) or "GIVEN")
attempt("character device", lambda: os.mknod("/tmp/mem", 0o20600, os.makedev(1, 1)) or "MADE")
attempt("block device", lambda: os.mknod("sda", 0o60600, os.makedev(8, 0)) or "MADE")
for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/fuse", "/dev/kvm", "/dev/mqueue", "/dev/net/tun", "/dev/loop-control", "/dev/davinci0", "/dev/nvidia0"):
    attempt("device " + path, os.open, path, os.O_RDONLY)


def typing(request, argument):
    main, side = os.openpty()
    try:
        fcntl.ioctl(side, request, argument)
    finally:
        os.close(main), os.close(side)
    return "ALLOWED"


attempt("TIOCSTI", typing, termios.TIOCSTI, b"x")
attempt("TIOCLINUX", typing, 0x541C, b"\x02")
attempt("the daemon's terminal", os.open, "/dev/tty", os.O_RDWR)

# Files of the host.
attempt("a host file", read, host_file)
for path in ("/etc/shadow", "/root", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/run/dbus", "/home/agent/.ssh", "/boot", "/var/log/syslog"):
    attempt("host " + path, os.stat, path)
for path in ("/", "/usr", "/etc", "/dev", "/opt", "/usr/bin", "/.skerry"):
    attempt("write to " + path, lambda: os.close(os.open(path + "/x", os.O_CREAT | os.O_WRONLY)) or "WRITTEN")
attempt("overwrite init", write, "/.skerry/init")
attempt("overwrite a program", write, "/usr/bin/env")
attempt("link a program out", lambda: os.link("/usr/bin/env", "/workspace/env") or "LINKED")
attempt("rename the workspace", lambda: os.rename("/workspace", "/tmp/w") or "RENAMED")
attempt("symlink out", lambda: os.symlink(host_file, "out") or read("out"))
attempt("upwards", lambda: read("/workspace/../../../../.." + host_file))
attempt("by /proc/self/root", lambda: read("/proc/self/root" + host_file))
attempt("inherited descriptors", lambda: str(sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4]))
attempt("descriptors upwards", lambda: "none" if all(not os.path.isdir(f"/proc/self/fd/{n}") or n == max(os.listdir("/proc/self/fd"), key=int) for n in ("0", "1", "2")) else "A DIRECTORY")

# Networks.
attempt("packet socket", open_socket, 17, socket.SOCK_RAW)
attempt("raw socket", open_socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
attempt("raw socket, IPv6", open_socket, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
attempt("ping socket", open_socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
for name, family in dict(vsock=40, alg=38, bluetooth=31, xdp=44, can=29, tipc=30, rds=21, smc=43, kcm=41, qipcrtr=42, nfc=39).items():
    attempt(name + " socket", open_socket, family, socket.SOCK_SEQPACKET if name == "tipc" else socket.SOCK_STREAM)
attempt("netlink audit", open_socket, 16, socket.SOCK_RAW, 9)
attempt("netlink netfilter", open_socket, 16, socket.SOCK_RAW, 12)
attempt("netlink uevents", open_socket, 16, socket.SOCK_RAW, 15)


def new_link():
    with socket.socket(16, socket.SOCK_RAW, 0) as s:
        kind = struct.pack("HH", 9, 1) + b"dummy\0\0\0"
        info = struct.pack("HH", 4 + len(kind), 18) + kind
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + info
        s.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
        return errno.errorcode.get(-struct.unpack_from("i", s.recv(4096), 16)[0], "MADE")


attempt("new interface", new_link)
attempt("interfaces", lambda: str([name for _, name in socket.if_nameindex()]))
attempt("host's loopback", connect, socket.AF_INET, ("127.0.0.1", host_port))
attempt("host's loopback, IPv6", connect, socket.AF_INET6, ("::1", host_port))
attempt("abstract socket", connect, socket.AF_UNIX, "\0" + host_socket)
attempt("internet", connect, socket.AF_INET, ("8.8.8.8", 53))
attempt("internet by UDP", connect, socket.AF_INET, ("8.8.8.8", 53), socket.SOCK_DGRAM)
attempt("internet, IPv6", connect, socket.AF_INET6, ("2001:4860:4860::8888", 53))
attempt("metadata", connect, socket.AF_INET, ("169.254.169.254", 80))
attempt("metadata, mapped", connect, socket.AF_INET6, ("::ffff:169.254.169.254", 80))
attempt("metadata, NAT64", connect, socket.AF_INET6, ("64:ff9b::a9fe:a9fe", 80))
attempt("names", lambda: "RESOLVED" if socket.getaddrinfo("example.com", 80) else "")

# Bombs.


def fork_bomb():
    pids = []
    try:
        while len(pids) < 10000:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            pids.append(pid)
        return "UNBOUNDED"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def fill(directory):
    fd = os.open(directory + "/bomb", os.O_CREAT | os.O_WRONLY)
    try:
        for _ in range(4096):
            os.write(fd, b"x" * (1 << 20))
        return "UNBOUNDED"
    finally:
        os.close(fd)
        os.unlink(directory + "/bomb")


def descriptors():
    kept = []
    try:
        while len(kept) < 2_000_000:
            kept.append(os.dup(1))
        return "UNBOUNDED"
    finally:
        for fd in kept:
            os.close(fd)


attempt("fork bomb", fork_bomb)
for directory in ("/tmp", "/dev/shm", "/run", "/home/agent"):
    attempt("disk bomb in " + directory, fill, directory)
attempt("large file", lambda: os.truncate(os.open("large", os.O_CREAT | os.O_WRONLY), 1 << 50) or "MADE")
attempt("descriptor bomb", descriptors)
attempt("core dump", lambda: str(resource.getrlimit(resource.RLIMIT_CORE)[1]))
def raise_limit():
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # Python's word for EPERM
        return "EPERM"
    return "RAISED"


attempt("raise a limit", raise_limit)
