package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// LaunchConnect as Spec.Launch: the shim starts nothing. Somebody else makes the
// sandbox, whose pid 1 is "runnerd-shim init --connect SOCKET -- ARGV..." and
// comes in by a socket below ControlDir. From then on all is as for a sandbox
// that the shim started.
const LaunchConnect = "connect"

// Names for LaunchConnect.
const (
	// ControlDir in the execution's directory is what the sandbox must show to
	// its init, read-only; ControlSocket is the socket's name in it.
	ControlDir    = "control"
	ControlSocket = "sock"
	// PlaceFile, of Spec.Files, has as Args the command's working directory and
	// then its environment. They reach init by its socket, so that the one who
	// makes the sandbox keeps neither.
	PlaceFile = "place"
	// FilterFile, of Spec.Files, has as Data a seccomp program that init loads
	// before the command starts.
	FilterFile = "seccomp"
)

func (s *Spec) connects() bool { return s.Launch == LaunchConnect }

func (s *Spec) validateLaunch() error {
	switch {
	case s.Launch == "" && (len(s.Argv) == 0 || !filepath.IsAbs(s.Argv[0])):
		return fmt.Errorf("%w: argv must start with an absolute program path", ErrSpec)
	case s.Launch == "":
		return nil
	case !s.connects():
		return fmt.Errorf("%w: unknown launch %q", ErrSpec, s.Launch)
	case len(s.Argv) > 0 || s.StageDir != "" || len(s.Env) > 0:
		return fmt.Errorf("%w: argv, env and stageDir belong to a host command, which launch %q has none of", ErrSpec, s.Launch)
	}
	for _, f := range s.Files {
		place := f.Name == PlaceFile && len(f.Args) > 0
		filter := f.Name == FilterFile && len(f.Data) > 0 && len(f.Data)%filterInstruction == 0
		if !place && !filter {
			return fmt.Errorf("%w: file %q is not one that init takes", ErrSpec, f.Name)
		}
	}
	return nil
}

// door is where init comes in, once. The socket's name appears only when all is
// ready to serve it, and is gone before the command starts: whatever connects
// later, the command above all, finds nobody.
type door struct{ fd int }

// openDoor expects the current directory to be the execution's.
func openDoor(owner *Credential) (*door, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open door: %w", err)
	}
	d := &door{fd}
	name := filepath.Join(ControlDir, ControlSocket)
	hidden := name + ".tmp"
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: hidden})
	if err == nil {
		err = unix.Chmod(hidden, 0o600)
	}
	if err == nil && owner != nil {
		err = unix.Chown(hidden, int(owner.UID), int(owner.GID))
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err == nil {
		err = unix.Rename(hidden, name)
	}
	if err != nil {
		_ = unix.Unlink(hidden)
		d.close()
		return nil, fmt.Errorf("open door: %w", err)
	}
	return d, nil
}

func (d *door) open() bool { return d != nil && d.fd >= 0 }

// close may be called again, and on a nil door.
func (d *door) close() {
	if d.open() {
		_ = unix.Unlink(filepath.Join(ControlDir, ControlSocket))
		unix.Close(d.fd)
		d.fd = -1
	}
}

// accept takes the connection that waits and says who is at its other end, by a
// pidfd; conn is blocking, as the control socket of a started sandbox is.
func (d *door) accept() (conn, pidfd, pid int, uid uint32, err error) {
	conn, _, err = unix.Accept4(d.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, -1, 0, 0, err
	}
	cred, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil {
		pidfd, err = peerPidfd(conn, int(cred.Pid))
	}
	if err == nil {
		err = unix.SetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err != nil {
		unix.Close(conn)
		return -1, -1, 0, 0, fmt.Errorf("init at the door: %w", err)
	}
	return conn, pidfd, int(cred.Pid), cred.Uid, nil
}

// peerPidfd asks the kernel for the very process that connected (Linux 6.5), or
// opens the one that has its number: it waits for an answer, so it is the same.
func peerPidfd(conn, pid int) (int, error) {
	if fd, err := unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
		return fd, nil
	}
	return unix.PidfdOpen(pid, 0)
}

// superviseGuest is supervise for a sandbox that connects. The door opens last:
// whoever sees it may count on all the rest. The end of init is the end of all:
// the kernel reports the end of a pid name space's first process only when it
// has killed and reaped the others.
func (r *run) superviseGuest() error {
	r.child = launched{control: -1, out: -1, err: -1}
	if err := r.prepare(); err != nil {
		r.breakOff(err.Error())
	} else if !r.killed {
		r.openDoor()
	}
	r.loop()
	return r.finish("")
}

func (r *run) openDoor() {
	d, err := openDoor(r.spec.Credential)
	if err != nil {
		r.breakOff(err.Error())
		return
	}
	r.door = d
}

// deserted: nobody is in the sandbox and nobody can come any more.
func (r *run) deserted() bool {
	return r.spec.connects() && !r.door.open() && r.initFD < 0
}

// admit lets init in, gives it what it needs, and shuts the door.
func (r *run) admit() {
	conn, pidfd, pid, uid, err := r.door.accept()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
		return
	}
	r.door.close()
	if err != nil {
		r.breakOff(err.Error())
		return
	}
	if err := r.checkInit(pid, uid); err != nil {
		unix.Close(conn)
		unix.Close(pidfd)
		r.breakOff(err.Error())
		return
	}
	r.child.pid, r.child.control, r.initFD = pid, conn, pidfd
	r.reaper.setInit(pidfd)
	if err := r.furnish(conn); err != nil {
		r.breakOff(err.Error())
	}
}

// checkInit demands the agent's host user, in a pid namespace's first process.
func (r *run) checkInit(pid int, uid uint32) error {
	want := uint32(os.Getuid())
	if c := r.spec.Credential; c != nil {
		want = c.UID
	}
	if uid != want {
		return fmt.Errorf("a process of user %d came for init, not of user %d", uid, want)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return fmt.Errorf("look at init: %w", err)
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			pids := bytes.Fields(rest)
			if len(pids) > 1 && string(pids[len(pids)-1]) == "1" {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d, which came for init, is not the first of a pid name space", pid)
}

// furnish sends init's configuration and, with it, the descriptors 0, 1 and 2 of
// the command and the spec's files.
func (r *run) furnish(conn int) error {
	table := &fdTable{}
	defer table.close()
	child := launched{}
	if err := addStdio(table, ".", &r.spec, &child); err != nil {
		return err
	}
	r.child.out, r.child.err = child.out, child.err
	if err := table.addFiles(r.spec.Files, openFile); err != nil {
		return err
	}
	config := r.spec.initConfig()
	config.files = namesInOrder(r.spec.Files)
	fds := make([]int, 0, len(table.files))
	for _, fd := range table.descriptors() {
		fds = append(fds, int(fd))
	}
	if err := unix.Sendmsg(conn, config.encode(), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("furnish init: %w", err)
	}
	return sendSecrets(conn, r.spec.Secrets)
}

// namesInOrder is the order in which addFiles numbers them.
func namesInOrder(files []FileArg) []string {
	var names []string
	for _, f := range files {
		if f.Args == nil {
			names = append(names, f.Name)
		}
	}
	for _, f := range files {
		if f.Args != nil {
			names = append(names, f.Name)
		}
	}
	return slices.Clip(names)
}

// makeControlDir lets the sandbox's user through to the socket. The execution's
// directory around it stays private.
func makeControlDir(dir string) error {
	path := filepath.Join(dir, ControlDir)
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(path, 0o711)
}
