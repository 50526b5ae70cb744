package oci

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncLayout makes what was written durable.
func syncLayout(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
