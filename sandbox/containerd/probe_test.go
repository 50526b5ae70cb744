package containerd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// A socket that somebody else serves could have the daemon mount what it likes.
func TestServerMustBeRoot(t *testing.T) {
	address := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := New(Config{Address: address, Namespace: "n", Runtime: DefaultRuntime, serverUID: uint32(os.Getuid()) + 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.Check(t.Context(), 0)
	var typed *UnavailableError
	if !errors.As(err, &typed) || !strings.Contains(typed.Why, "is served by user") || !strings.Contains(typed.Remedy, "sandbox.containerd.address") {
		t.Errorf("check: %v", err)
	}
	// Each connection is checked, not the first look alone.
	if _, err := b.client.Version(b.within(t.Context())); err == nil || !strings.Contains(err.Error(), "is served by user") {
		t.Errorf("call: %v", err)
	}
}

func TestCheckSaysWhyAndWhatToDo(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	other := filepath.Join(dir, "other")
	mute, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	go func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 not gRPC\r\n"))
			c.Close()
		}
	}()
	for address, c := range map[string]struct {
		uid int
		why string
	}{
		filepath.Join(dir, "none"): {0, "there is no socket"},
		file:                       {0, "is not a socket"},
		dead:                       {0, "nobody listens"},
		other:                      {0, "does not tell its version"},
		"/any":                     {1000, "the daemon is not root"},
	} {
		b, err := New(Config{Address: address, Namespace: "n", Runtime: DefaultRuntime, serverUID: uint32(os.Getuid())})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Check(t.Context(), c.uid)
		var typed *UnavailableError
		if !errors.As(err, &typed) || !errors.Is(err, ErrUnavailable) || !strings.Contains(typed.Why, c.why) || typed.Remedy == "" {
			t.Errorf("%s: %v", address, err)
		}
		_ = b.Close()
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"1.6.20~ds1": true, "v2.0.0": true, "1.7.0-rc.1": true, "1.10": true, "1.5.9": false, "0.9": false, "": false, "x.y": false} {
		if got := recent(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestUnavailableCauses(t *testing.T) {
	for text, remedy := range map[string]string{
		`OCI runtime create failed: unable to retrieve OCI runtime error: exec: "runc": executable file not found in $PATH`: "install the package runc",
		`runtime "io.containerd.other.v2" binary not installed "containerd-shim-other-v2": file does not exist: not found`:  "default of sandbox.containerd.runtime",
	} {
		var typed *UnavailableError
		if err := unavailable(errors.New(text)); !errors.As(err, &typed) || !strings.Contains(typed.Remedy, remedy) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := unavailable(errdefs.ErrUnavailable); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errdefs.ErrUnavailable) {
		t.Error(err)
	}
	if plain := errors.New("other"); unavailable(plain) != plain { //nolint:errorlint // the very same
		t.Error("another error was changed")
	}
}
