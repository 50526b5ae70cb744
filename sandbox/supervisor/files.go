package supervisor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names in an execution's directory; doc.go says what they hold.
const (
	specFile    = "spec.json"
	resolveFile = "resolve"
	shimFile    = "shim.json"
	cancelFile  = "cancel"
	abortFile   = "abort"
	voidFile    = "void"
	exitFile    = "exit.json"
	sockFile    = "sock"
	logDir      = "log"
)

// pendingFile is a file that is made early, where time is free, and gets its
// content and its name late, where it isn't: creating one costs far more than
// writing and renaming it.
type pendingFile struct {
	f    *os.File
	dir  string
	name string
}

func newPendingFile(dir, name string) (*pendingFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".tmp"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &pendingFile{f, dir, name}, nil
}

// reserve takes the disk space for the content now, so that it can be written
// when the command has filled the disk. A file system that cannot do that is no
// error: it only does not help.
func (p *pendingFile) reserve(bytes int64) error {
	err := unix.Fallocate(int(p.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	if err == unix.ENOSPC || err == unix.EDQUOT {
		return fmt.Errorf("reserve space for %s: %w", p.name, err)
	}
	return nil
}

// publish gives the file its content and its name, in one step for all who look
// for it. That survives a crash of the process, not of the machine.
func (p *pendingFile) publish(data []byte) error {
	if _, err := p.f.Write(data); err != nil {
		return err
	}
	return os.Rename(p.f.Name(), filepath.Join(p.dir, p.name))
}

// publishDurably also survives a power cut once it returns. The rename comes
// before the fsync on purpose: on a journaling file system one commit then
// carries both. The price is that a power cut in between may leave a file with
// torn content: readers of durable files must take one that they can't parse
// for one that isn't there.
func (p *pendingFile) publishDurably(data []byte) error {
	if err := p.publish(data); err != nil {
		return err
	}
	if err := p.f.Sync(); err != nil {
		return err
	}
	return syncDir(p.dir)
}

func (p *pendingFile) close() { p.f.Close() }

func writeFileDurably(dir, name string, data []byte) error {
	p, err := newPendingFile(dir, name)
	if err != nil {
		return err
	}
	defer p.close()
	return p.publishDurably(data)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func exists(dir, name string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, name))
	if err == nil {
		return true, nil
	}
	if os.IsNotExist(err) {
		return false, nil
	}
	return false, fmt.Errorf("look for %s: %w", name, err)
}
