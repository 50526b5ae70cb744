package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// killShim ends the supervisor of an execution the hard way.
func killShim(t testing.TB, dir string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "shim.json"))
	if err != nil {
		t.Fatal(err)
	}
	var identity struct {
		Shim struct {
			PID int `json:"pid"`
		} `json:"shim"`
	}
	if err := json.Unmarshal(b, &identity); err != nil || identity.Shim.PID <= 1 {
		t.Fatalf("shim.json: %s %v", b, err)
	}
	if err := syscall.Kill(identity.Shim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
