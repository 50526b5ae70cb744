package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

// I7: the sandbox is sealed. Each script prints only if something leaks.
func TestI7Sealed(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		secret := filepath.Join(privateDir(t), "secret")
		if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		for name, script := range map[string]string{
			"host file":             "cat " + secret + " 2>/dev/null",
			"host homes":            "ls /root 2>/dev/null; ls -A /home/agent; ls -A /home | grep -vx agent",
			"host passwords":        "cat /etc/shadow 2>/dev/null; grep -v -e ^root: -e ^agent: -e ^nobody: /etc/passwd",
			"host processes":        `for p in /proc/[0-9]*; do read -r c < $p/comm; case $c in .init|init|bash|cat|grep) ;; *) echo "$p $c";; esac; done`,
			"host name":             "cat /proc/sys/kernel/hostname | grep -vx skerry",
			"network interfaces":    "tail -n +3 /proc/net/dev | grep -v ' lo:'",
			"connection out":        "timeout 2 bash -c ': < /dev/tcp/8.8.8.8/53' 2>/dev/null && echo connected",
			"loopback of the host":  "for p in 22 80 5432; do timeout 1 bash -c \": < /dev/tcp/127.0.0.1/$p\" 2>/dev/null && echo connected; done",
			"write to /usr":         "touch /usr/x 2>/dev/null && echo wrote",
			"write to the root":     "touch /x /etc/x /dev/x /opt/env/x 2>/dev/null && echo wrote",
			"mount":                 "mount -t tmpfs none /tmp 2>/dev/null && echo mounted",
			"unshare":               "for f in -U -m -p -n -i -u -C; do unshare $f true 2>/dev/null && echo unshared $f; done",
			"capabilities":          "grep ^Cap /proc/self/status | grep -v 0000000000000000",
			"new privileges":        "grep NoNewPrivs /proc/self/status | grep -v 1$",
			"kernel keys":           "cat /proc/keys 2>/dev/null; ls -A /proc/acpi 2>/dev/null",
			"kernel log":            "dmesg 2>/dev/null",
			"sysctl":                "for f in /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory /proc/sys/user/max_user_namespaces /proc/sys/net/ipv4/ip_forward; do echo 1 2>/dev/null > $f && echo wrote $f; done 2>/dev/null",
			"devices":               "ls /dev | grep -vxE 'console|core|fd|full|null|ptmx|pts|random|shm|stderr|stdin|stdout|tty|urandom|zero'",
			"block devices":         "mknod /tmp/d b 8 0 2>/dev/null && echo made",
			"sys":                   "find /sys ! -type d | grep -vx /sys/devices/system/cpu/online; grep sysfs /proc/self/mounts",
			"daemon's descriptors":  "ls -l /proc/self/fd | grep -v -e /dev/null -e pipe: -e /proc -e total -e /tmp/err",
			"daemon's environment":  "env | grep -i -e skerry -e GOMAX -e GOGC",
			"setuid programs":       "for f in su mount passwd; do p=$(command -v $f) && [ -u $p ] && su -c id </dev/null 2>/dev/null; done",
			"init's memory":         "cat /proc/1/environ /proc/1/maps 2>/dev/null; ls /proc/1/fd 2>/dev/null; readlink /proc/1/cwd",
			"chroot":                "chroot / true 2>/dev/null && echo chrooted",
			"control groups' paths": "cut -d: -f3 /proc/self/cgroup | grep -v -e ^/$ -e ^/skerry/ex_",
		} {
			t.Run(name, func(t *testing.T) {
				r := w.shell(t, "exec 2>/tmp/err; "+script+"; echo done")
				if r.stdout != "done\n" || r.Kind != supervisor.KindExited {
					t.Errorf("leaked: %q (%+v)", r.stdout, r.Exit)
				}
			})
		}
	})
}

// I7: what the daemon's user owns stays closed, even inside the workspace.
func TestI7DaemonsFileInTheWorkspace(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		if os.Getuid() != 0 {
			t.Skip("needs root: an ordinary daemon and its agents have the same uid")
		}
		w := open(t, nil)
		if err := os.WriteFile(filepath.Join(w.workspace, "secret"), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := w.shell(t, "cat secret; echo x >> secret; ls -l secret | cut -d' ' -f3; rm -f secret; ln -s /etc/shadow link; cat link")
		if strings.Contains(r.stdout+r.stderr, "root:") || strings.HasPrefix(r.stdout, "secret") {
			t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
		}
	})
}

// Calls that a shell can't make, through Python.
func TestSystemCallsRefused(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		if _, err := exec.LookPath("python3"); err != nil {
			sandboxtest.Require(t, err)
		}
		w := open(t, nil)
		r := w.run(t, "python3", "-c", `
import ctypes, os, socket, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    r = libc.syscall(*args)
    print(name, "allowed" if r >= 0 else errno.errorcode[ctypes.get_errno()])
m = os.uname().machine
nr = (dict(ptrace=101, bpf=321, keyctl=250, perf=298, uring=425, uffd=323, clone3=435, open_tree=428, personality=135, kexec=246, unshare=272)
      if m == "x86_64" else
      dict(ptrace=117, bpf=280, keyctl=219, perf=241, uring=425, uffd=282, clone3=435, open_tree=428, personality=92, kexec=104, unshare=97))
call("ptrace", nr["ptrace"], 16, 1, 0, 0)
call("bpf", nr["bpf"], 0, 0, 0)
call("keyctl", nr["keyctl"], 0, -3, 1)
call("perf", nr["perf"], 0, 0, -1, -1, 0)
call("uring", nr["uring"], 1, 0)
call("uffd", nr["uffd"], 1)
call("clone3", nr["clone3"], 0, 0)
call("open_tree", nr["open_tree"], -100, b"/", 1)
call("personality", nr["personality"], 0x40000)
call("personality query", nr["personality"], 0xffffffff)
call("kexec", nr["kexec"], 0, 0, 0, 0)
call("newuser", nr["unshare"], 0x10000000)
call("future", 480)
for name, args in dict(packet=(17, 3), vsock=(40, 1), alg=(38, 5), audit=(16, 3, 9), route=(16, 3, 0), unix=(1, 1), inet=(2, 1)).items():
    try:
        socket.socket(*args).close(); print(name, "allowed")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
`)
		want := `ptrace EPERM
bpf EPERM
keyctl EPERM
perf EPERM
uring EPERM
uffd EPERM
clone3 ENOSYS
open_tree EPERM
personality EPERM
personality query allowed
kexec EPERM
newuser EPERM
future ENOSYS
packet EAFNOSUPPORT
vsock EAFNOSUPPORT
alg EAFNOSUPPORT
audit EPROTONOSUPPORT
route allowed
unix allowed
inet allowed
`
		if r.stdout != want {
			t.Errorf("got:\n%s\nwant:\n%s\n%s", r.stdout, want, r.stderr)
		}
	})
}

// F22: the user, time zones, locales and certificates are there.
func TestF22PeopleExpectThese(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		r := w.shell(t, `
id -un; id -u; echo $HOME; cd ~ && touch x && pwd; cd /workspace; whoami
date -d @0 +%Z; TZ=Asia/Shanghai date -d @0 +%H
locale 2>/dev/null | grep -c C.UTF-8 | grep -q . && echo locale
[ ! -e /usr/share/ca-certificates ] || ls /etc/ssl/certs | head -1 | grep -c .
getent hosts localhost | grep -c localhost
touch /tmp/a /var/tmp/b /dev/shm/c /run/d && echo writable
python3 -c 'import ssl, tempfile, multiprocessing; tempfile.mkdtemp(); multiprocessing.Semaphore(); print("python")' 2>&1
`)
		for _, want := range []string{"agent\n1000\n/home/agent\n/home/agent\nagent\n", "\n08\n", "locale", "writable", "python"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("no %q in %q (%s)", want, r.stdout, r.stderr)
			}
		}
	})
}

// F21: a full /tmp is ENOSPC, not an end by lack of memory, and no other
// place of the sandbox grows without a limit.
func TestF21PrivateFileSystemsAreSized(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		w.policy.TmpBytes, w.policy.ShmBytes, w.policy.HomeBytes = 2<<20, 1<<20, 1<<20
		r := w.shell(t, `
for d in /tmp /dev/shm /run /home/agent; do
  head -c 40000000 /dev/zero 2>/dev/null > $d/big; [ $(stat -c %s $d/big) -lt 20000000 ] && echo $d bounded
done
echo x > /dev/y || echo /dev is read-only`)
		if r.stdout != "/tmp bounded\n/dev/shm bounded\n/run bounded\n/home/agent bounded\n/dev is read-only\n" {
			t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
		}
	})
}

// What is granted besides is seen, read-only.
func TestGrantedPaths(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		env, data := filepath.Join(privateDir(t), "env"), filepath.Join(privateDir(t), "data")
		for _, d := range []string{filepath.Join(env, "bin"), data} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(env, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(env, "bin", "tool"), []byte("#!/bin/sh\necho from the environment\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "set"), []byte("data\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		w := open(t, func(c *Config) { c.MountPoints = []string{"/data"} })
		w.policy.EnvPrefix = env
		w.policy.ReadOnly = []Bind{{data, "/data"}}
		w.policy.Env = map[string]string{"TRICKY": "{fd:args}", "{fd:control}": "x"}
		r := w.shell(t, `tool; cat /data/set; touch /data/x /opt/env/x 2>/dev/null && echo wrote; echo "$TRICKY"; printenv '{fd:control}'`)
		if r.stdout != "from the environment\ndata\n{fd:args}\nx\n" {
			t.Errorf("stdout %q, stderr %q (%+v)", r.stdout, r.stderr, r.Exit)
		}
	})
}
