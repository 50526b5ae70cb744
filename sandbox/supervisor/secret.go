package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Secret is a value of the operator's that init gives to the command, in a
// variable or in a file. The spec, which lies on disk, names where the value is;
// the shim reads it when it launches and hands it to init over the control
// socket, so that it is in no other file and on no command line.
type Secret struct {
	// Path is the host file with the value.
	Path string `json:"path"`
	// Env names a variable; one line end after the value is cut off.
	Env string `json:"env,omitempty"`
	// File is an absolute path in a place of the sandbox that its user can write.
	// Init makes it, and its directory, for that user alone.
	File string `json:"file,omitempty"`
}

// Bounds of secrets: the messages wait in a socket's buffer until there is an init.
const (
	MaxSecretBytes  = 32 << 10
	MaxSecretsBytes = 64 << 10 // of one execution together
	MaxSecrets      = 16
)

const msgSecret = 'S'

func (s *Spec) validateSecrets() error {
	if len(s.Secrets) > MaxSecrets {
		return fmt.Errorf("%w: more than %d secrets", ErrSpec, MaxSecrets)
	}
	for _, secret := range s.Secrets {
		if err := secret.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (s Secret) validate() error {
	switch {
	case !filepath.IsAbs(s.Path):
		return fmt.Errorf("%w: the path of secret %s is not absolute", ErrSpec, s.name())
	case (s.Env == "") == (s.File == ""):
		return fmt.Errorf("%w: a secret needs either a variable or a file", ErrSpec)
	case strings.ContainsAny(s.Env, "=\x00") || strings.ContainsRune(s.File, 0):
		return fmt.Errorf("%w: secret %q has a name that can't be one", ErrSpec, s.name())
	case s.File != "" && (!filepath.IsAbs(s.File) || filepath.Clean(s.File) != s.File):
		return fmt.Errorf("%w: secret file %q is not a clean absolute path", ErrSpec, s.File)
	}
	return nil
}

// name is what records and errors may tell of a secret.
func (s Secret) name() string { return s.Env + s.File }

// sendSecrets reads all values and puts them into the control socket.
func sendSecrets(control int, secrets []Secret) error {
	total := 0
	for _, s := range secrets {
		value, err := s.read()
		if err != nil {
			return fmt.Errorf("secret %s: %w", s.name(), err)
		}
		if total += len(value); total > MaxSecretsBytes {
			return fmt.Errorf("secret %s: all secrets together are over %d bytes", s.name(), MaxSecretsBytes)
		}
		if err := send(control, s.encode(value)); err != nil {
			return err
		}
	}
	return nil
}

// read gives the value. Its errors are told to agents and have no host path.
func (s Secret) read() ([]byte, error) {
	fd, err := unix.Open(s.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a FIFO must not hang the launch
	if err != nil {
		return nil, fmt.Errorf("its value can't be read on the runner: %w", err)
	}
	f := os.NewFile(uintptr(fd), "secret")
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.New("its value on the runner is not in a regular file")
	}
	value, err := io.ReadAll(io.LimitReader(f, MaxSecretBytes+1))
	if err != nil {
		return nil, errors.New("its value can't be read on the runner")
	}
	if s.Env != "" {
		value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	}
	switch {
	case len(value) > MaxSecretBytes:
		return nil, fmt.Errorf("its value is over %d bytes", MaxSecretBytes)
	case s.Env != "" && bytes.IndexByte(value, 0) >= 0:
		return nil, errors.New("its value has a NUL byte, which no variable can have")
	}
	return value, nil
}

// encode gives {'S', 'E' or 'F', u16 length of the name, name, value}.
func (s Secret) encode(value []byte) []byte {
	kind := byte('E')
	if s.File != "" {
		kind = 'F'
	}
	name := s.name()
	b := append(make([]byte, 0, 4+len(name)+len(value)), msgSecret, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	b = append(b, name...)
	return append(b, value...)
}

// receiveSecrets is init's side: n messages follow the configuration.
func receiveSecrets(control, n int) error {
	if n == 0 {
		return nil
	}
	buf := make([]byte, MaxSecretBytes+maxControlMsg)
	for range n {
		size, err := unix.Read(control, buf)
		for err == unix.EINTR {
			size, err = unix.Read(control, buf)
		}
		if err != nil {
			return fmt.Errorf("read secret: %w", err)
		}
		if err := applySecret(buf[:size]); err != nil {
			return err
		}
	}
	clear(buf)
	return nil
}

var errSecretMessage = errors.New("secret: not a message of one")

func applySecret(b []byte) error {
	if len(b) < 4 || b[0] != msgSecret {
		return errSecretMessage
	}
	length := int(binary.LittleEndian.Uint16(b[2:]))
	if len(b) < 4+length {
		return errSecretMessage
	}
	name, value := string(b[4:4+length]), b[4+length:]
	if b[1] == 'E' {
		return os.Setenv(name, string(value)) // the leader gets init's environment
	}
	return writeSecret(name, value)
}

func writeSecret(path string, value []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	_, err = f.Write(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	return nil
}
