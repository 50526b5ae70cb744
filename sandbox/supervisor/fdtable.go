package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fdTable collects the descriptors that the host command inherits, in the order
// of their numbers there, and fills them into arguments.
type fdTable struct {
	files []*os.File
	pairs []string // old, new, old, new, ... for strings.Replacer
}

func (t *fdTable) add(name string, f *os.File) {
	if name != "" {
		t.pairs = append(t.pairs, "{fd:"+name+"}", strconv.Itoa(len(t.files)))
	}
	t.files = append(t.files, f)
}

// resolve replaces the placeholders in args; an unknown one is an error.
func (t *fdTable) resolve(args []string) ([]string, error) {
	r := strings.NewReplacer(t.pairs...)
	out := make([]string, len(args))
	for i, arg := range args {
		if !strings.HasPrefix(arg, "{fd:") {
			out[i] = arg
			continue
		}
		out[i] = r.Replace(arg)
		if out[i] == arg {
			return nil, fmt.Errorf("%w: argument %q names no file of the spec", ErrSpec, arg)
		}
	}
	return out, nil
}

func (t *fdTable) descriptors() []uintptr {
	fds := make([]uintptr, len(t.files))
	for i, f := range t.files {
		fds[i] = f.Fd()
	}
	return fds
}

// close closes everything but the three standard streams' owner's copies; the
// child has its own by then.
func (t *fdTable) close() {
	for _, f := range t.files {
		f.Close()
	}
	t.files = nil
}

// addFiles opens, in order, the host paths and contents that the spec names.
// Argument lists come last since they may name any other file.
func (t *fdTable) addFiles(files []FileArg, open func(FileArg) (*os.File, error)) error {
	for _, f := range files {
		if f.Args != nil {
			continue
		}
		file, err := open(f)
		if err != nil {
			return err
		}
		t.add(f.Name, file)
	}
	for _, f := range files {
		if f.Args == nil {
			continue
		}
		args, err := t.resolve(f.Args)
		if err != nil {
			return err
		}
		file, err := anonymousFile(f.Name, []byte(strings.Join(args, "\x00")+"\x00"))
		if err != nil {
			return err
		}
		t.add(f.Name, file)
	}
	return nil
}

// openFile opens a file argument as the shim itself sees it.
func openFile(f FileArg) (*os.File, error) {
	if f.Path == "" {
		return anonymousFile(f.Name, f.Data)
	}
	return openPath(f.Name, f.Path)
}

func openPath(name, path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s %s: %w", name, path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func anonymousFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err == nil {
		_, err = f.Seek(0, 0)
		if err == nil {
			return f, nil
		}
	}
	f.Close()
	return nil, fmt.Errorf("fill memory file %s: %w", name, err)
}
