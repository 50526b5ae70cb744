package bubblewrap

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/document"
	"skerry.internal/sandbox/seccomp"
	"skerry.internal/sandbox/supervisor"
)

// ErrUnsupported says that the document asks for something that bubblewrap, or
// the one of this host, can't give.
var ErrUnsupported = errors.New("bubblewrap can't express")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Config says what the bubblewrap of this host can do.
type Config struct {
	// Path of the program.
	Path string
	// BindFD: it has --bind-fd, which checks that what was mounted is what the
	// descriptor refers to (bubblewrap 0.10, and 0.8 of Debian 12).
	BindFD bool
	// DisableUserns: its --disable-userns works here. Without it, seccomp alone
	// keeps sandboxed code from making user name spaces.
	DisableUserns bool
	// Init is where the document mounts the program that is to be pid 1.
	Init string
	// SystemDirs are directories that every user can reach; sources in them are
	// named by path, all others are handed over as descriptors.
	SystemDirs []string
	// StageDirs are directories that may be covered, in a private mount name
	// space, to make unreachable sources reachable. None of them may hold a
	// source that is named by path.
	StageDirs []string
}

// Backend makes supervisor specs. It is safe for concurrent use.
type Backend struct {
	config  Config
	filters *seccomp.Compiler
}

// New makes a backend.
func New(config Config) *Backend {
	return &Backend{config: config, filters: seccomp.NewCompiler(runtime.GOARCH)}
}

// Command translates the document. daemonUID tells whether the command needs a
// change of user, and with it whether paths must be staged.
func (b *Backend) Command(spec *specs.Spec, daemonUID int) (supervisor.Spec, error) {
	var out supervisor.Spec
	if err := errors.Join(document.Check(spec), checkMasks(spec)); err != nil {
		return out, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	t := &translation{config: b.config, spec: spec}
	options, err := t.options()
	if err != nil {
		return out, err
	}
	if spec.Linux.Seccomp != nil {
		program, err := b.filters.Program(spec.Linux.Seccomp)
		if err != nil {
			return out, err
		}
		options = append(options, "--seccomp", t.addFile(supervisor.FileArg{Name: "seccomp", Data: program}))
	}
	out.Argv = []string{b.config.Path, "--args", "{fd:args}", "--", b.config.Init, "init", "{fd:control}", "--"}
	for _, arg := range spec.Process.Args {
		out.Argv = append(out.Argv, supervisor.Literal(arg))
	}
	out.Files = append(t.files, supervisor.FileArg{Name: "args", Args: options})
	out.Limits = document.Limits(spec)
	return out, t.setCredential(&out, daemonUID)
}

// setCredential makes the command run as the mapped host user.
func (t *translation) setCredential(out *supervisor.Spec, daemonUID int) error {
	uid, gid := t.spec.Linux.UIDMappings[0].HostID, t.spec.Linux.GIDMappings[0].HostID
	if uid == 0 || gid == 0 {
		return unsupported("the host's uid or gid 0 in a sandbox")
	}
	if daemonUID != 0 {
		if uid != uint32(daemonUID) {
			return unsupported("a change to uid %d by a daemon of uid %d", uid, daemonUID)
		}
		return nil
	}
	out.Credential = &supervisor.Credential{UID: uid, GID: gid}
	for _, f := range t.files {
		if f.Path == "" || reachable(f.Path, uid, gid) {
			continue
		}
		dir, err := t.stageDir()
		out.StageDir = dir
		return err
	}
	return nil
}
