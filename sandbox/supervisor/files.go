package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
)

// Names in an execution's directory; doc.go says what they hold.
const (
	specFile    = "spec.json"
	lockFile    = "lock"
	resolveFile = "resolve"
	shimFile    = "shim.json"
	cancelFile  = "cancel"
	voidFile    = "void"
	exitFile    = "exit.json"
	sockFile    = "sock"
	logDir      = "log"
	shimLog     = "shim.log"
)

// writeFileAtomically replaces dir/name in one step. It survives a crash of the
// process, not of the machine.
func writeFileAtomically(dir, name string, data []byte) error {
	tmp := filepath.Join(dir, name+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, name))
}

// writeFileDurably replaces dir/name in one step that survives a power cut.
func writeFileDurably(dir, name string, data []byte) error {
	tmp := filepath.Join(dir, name+".tmp")
	if err := writeSynced(tmp, data); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
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
