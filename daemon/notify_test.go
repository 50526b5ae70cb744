package daemon

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestNotifyReady(t *testing.T) {
	t.Setenv(notifyEnv, "")
	if err := NotifyReady(); err != nil {
		t.Fatalf("without systemd: %v", err)
	}
	dir, err := os.MkdirTemp("", "notify") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "s")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(notifyEnv, name)
	if err := NotifyReady(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1\n" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if os.Getenv(notifyEnv) != "" {
		t.Error("children would learn of the socket")
	}
	t.Setenv(notifyEnv, filepath.Join(dir, "nobody"))
	if err := NotifyReady(); err == nil {
		t.Error("no error though nobody listens")
	}
}
