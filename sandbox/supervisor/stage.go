package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// stage makes host paths reachable for an unprivileged bubblewrap. bubblewrap
// resolves even an inherited descriptor back to a path and walks it with the
// rights of the sandbox's user, who may not traverse the data directory's
// parents. So a privileged shim binds each path below a tmpfs of its own, in a
// mount namespace that only its main thread and bubblewrap are in.
type stage struct {
	dir string
	n   int
}

// enterStage moves the calling thread, which must be locked and start the host
// command, into a new mount namespace.
func enterStage(dir string) (*stage, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("stage mounts: new mount namespace: %w", err)
	}
	// Mounts and unmounts of the host still arrive here, none goes back.
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: "/" is no mount point
		return nil, fmt.Errorf("stage mounts: make / a slave: %w", err)
	}
	return &stage{dir: dir}, nil
}

// openAll opens every path while the stage's directory is not yet covered, and
// only then binds them, so that a path below that directory still works.
func (s *stage) openAll(files []FileArg) (map[string]*os.File, error) {
	opened := make(map[string]*os.File)
	for _, f := range files {
		if f.Path == "" {
			continue
		}
		file, err := openPath(f.Name, f.Path)
		if err != nil {
			closeAll(opened)
			return nil, err
		}
		opened[f.Name] = file
	}
	if err := unix.Mount("skerry-stage", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0755"); err != nil {
		closeAll(opened)
		return nil, fmt.Errorf("stage mounts: tmpfs on %s: %w", s.dir, err)
	}
	return opened, nil
}

func closeAll(files map[string]*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// bind puts an opened file or directory onto the stage and opens it there.
func (s *stage) bind(name string, from *os.File) (*os.File, error) {
	info, err := from.Stat()
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", name, err)
	}
	s.n++
	target := filepath.Join(s.dir, strconv.Itoa(s.n))
	if info.IsDir() {
		err = os.Mkdir(target, 0o755)
	} else {
		err = os.WriteFile(target, nil, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", name, err)
	}
	source := "/proc/self/fd/" + strconv.Itoa(int(from.Fd()))
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("stage %s: bind: %w", name, err)
	}
	return openPath(name, target)
}

// addStagedFiles fills the table like addFiles, with paths taken by way of the
// stage.
func addStagedFiles(t *fdTable, spec *Spec) error {
	s, err := enterStage(spec.StageDir)
	if err != nil {
		return err
	}
	opened, err := s.openAll(spec.Files)
	if err != nil {
		return err
	}
	defer closeAll(opened)
	return t.addFiles(spec.Files, func(f FileArg) (*os.File, error) {
		if from := opened[f.Name]; from != nil {
			return s.bind(f.Name, from)
		}
		return openFile(f)
	})
}
