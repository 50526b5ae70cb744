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
	pairs []string // placeholder, value, placeholder, value, ...
}

func (t *fdTable) add(name string, f *os.File) {
	if name != "" {
		n := strconv.Itoa(len(t.files))
		t.pairs = append(t.pairs, "{fd:"+name+"}", n, "{path:"+name+"}", "/proc/self/fd/"+n)
	}
	t.files = append(t.files, f)
}

// literalMark begins an argument that is no placeholder, whatever it looks like.
const literalMark = "{=}"

// Literal protects an argument that others chose from being taken for a
// placeholder in Spec.Argv or FileArg.Args.
func Literal(arg string) string {
	if strings.HasPrefix(arg, "{") {
		return literalMark + arg
	}
	return arg
}

// resolve replaces the arguments that are placeholders.
func (t *fdTable) resolve(args []string) []string {
	values := make(map[string]string, len(t.pairs)/2)
	for i := 0; i < len(t.pairs); i += 2 {
		values[t.pairs[i]] = t.pairs[i+1]
	}
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = arg
		if v, ok := values[arg]; ok {
			out[i] = v
		} else if literal, ok := strings.CutPrefix(arg, literalMark); ok {
			out[i] = literal
		}
	}
	return out
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
		args := t.resolve(f.Args)
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
