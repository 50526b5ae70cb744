package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// launched is a host command that runs, and the shim's ends of what joins them.
type launched struct {
	pid     int // of the host command, a child of the shim
	control int
	out     int
	err     int
}

// launch starts the host command of the execution in dir, an absolute path. It must be called on a locked thread that
// lives as long as the shim: when that thread dies, the kernel kills the
// command (PR_SET_PDEATHSIG), which takes the sandbox with it (I1).
func launch(dir string, spec *Spec) (l launched, err error) {
	table := &fdTable{}
	defer table.close()
	if err := addStdio(table, dir, spec, &l); err != nil {
		return l, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if err := addControl(table, spec, &l); err != nil {
		return l, err
	}
	if spec.Credential != nil && spec.StageDir != "" {
		err = addStagedFiles(table, spec)
	} else {
		err = table.addFiles(spec.Files, openFile)
	}
	if err != nil {
		return l, err
	}
	argv := table.resolve(spec.Argv)
	restore := firstToGo()
	l.pid, err = syscall.ForkExec(argv[0], argv, procAttr(dir, spec, table))
	restore()
	if err != nil {
		return l, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return l, nil
}

// firstToGo makes what is forked until restore the first choice of the kernel
// when the host runs out of memory: without a memory limit the sandbox must go,
// not the shim, a daemon or another agent's work that happens to be larger.
// Raising one's own score needs no privilege, nor does undoing that.
func firstToGo() (restore func()) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("1000"), 0) != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(file, before, 0) }
}

func procAttr(dir string, spec *Spec, table *fdTable) *syscall.ProcAttr {
	attr := &syscall.ProcAttr{
		Dir:   "/", // the execution's directory may be unreadable to the user
		Env:   append(slices.Clone(spec.Env), mark(dir)),
		Files: table.descriptors(),
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if c := spec.Credential; c != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID}
	}
	return attr
}

// addStdio makes descriptors 0, 1 and 2 of the command.
func addStdio(t *fdTable, dir string, spec *Spec, l *launched) error {
	l.control, l.out, l.err = -1, -1, -1
	stdin, err := openStdin(dir, spec.Stdin)
	if err != nil {
		return err
	}
	t.add("", stdin)
	for _, end := range []*int{&l.out, &l.err} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			l.close()
			return fmt.Errorf("output pipe: %w", err)
		}
		*end = p[0]
		t.add("", os.NewFile(uintptr(p[1]), "output"))
		if c := spec.Credential; c != nil {
			// Programs open /dev/stdout and /dev/stderr, which asks the inode.
			if err := unix.Fchown(p[1], int(c.UID), int(c.GID)); err != nil {
				l.close()
				return fmt.Errorf("output pipe: %w", err)
			}
		}
	}
	return nil
}

// openStdin gives the input. Its file is made readable to all, within the
// execution's private directory, so that /dev/stdin can be opened too.
func openStdin(dir, name string) (*os.File, error) {
	if name == "" {
		return os.Open(os.DevNull)
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("open stdin: %w", err)
	}
	if err := f.Chmod(0o444); err != nil {
		f.Close()
		return nil, fmt.Errorf("open stdin: %w", err)
	}
	return f, nil
}

// addControl makes the control socket and puts init's configuration into it.
func addControl(t *fdTable, spec *Spec, l *launched) error {
	ours, theirs, err := controlPair()
	if err != nil {
		return err
	}
	l.control = ours
	t.add(controlName, os.NewFile(uintptr(theirs), controlName))
	if err := send(ours, spec.initConfig().encode()); err != nil {
		return err
	}
	return sendSecrets(ours, spec.Secrets)
}

// close closes the shim's ends after a failed launch.
func (l *launched) close() {
	for _, fd := range []*int{&l.control, &l.out, &l.err} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}
