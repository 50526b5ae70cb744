package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary stand for the command: run again with
// SKERRY_RUNNERD_MAIN it is runnerd.
func TestMain(m *testing.M) {
	if os.Getenv("SKERRY_RUNNERD_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// runnerdRun runs the command as a process and returns what it printed.
func runnerdRun(t *testing.T, args ...string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "SKERRY_RUNNERD_MAIN=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), err
}

// casJSON runs a store command that must succeed and decodes its answer.
func casJSON[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	out, err := runnerdRun(t, append([]string{"cas", "--json"}, args...)...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%q printed %q: %v", args, out, err)
	}
	return v
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestCasSnapshotAndRestore(t *testing.T) {
	store, work, out := filepath.Join(t.TempDir(), "store"), t.TempDir(), filepath.Join(t.TempDir(), "out")
	put(t, filepath.Join(work, "a.txt"), "alpha")
	put(t, filepath.Join(work, "src/b.txt"), "beta")
	if err := os.Symlink("a.txt", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	first := casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	if first.Files != 2 || first.Bytes != 9 || first.NewBytes < 9 || first.Seq != 1 || first.Head != "cli:"+work || first.Seconds <= 0 {
		t.Fatalf("first %+v", first)
	}
	again := casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	if again.Digest != first.Digest || again.NewBytes != 0 || again.Seq != 1 {
		t.Errorf("unchanged %+v", again)
	}
	put(t, filepath.Join(work, "a.txt"), "ALPHA!")
	if err := os.Chmod(filepath.Join(work, "a.txt"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	second := casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	if second.DroppedModes != 1 || len(second.Dropped) != 1 || second.Dropped[0].Path != "a.txt" || second.Dropped[0].What != "mode bits 4000" {
		t.Errorf("dropped %+v", second)
	}
	if second.Seq != 2 || second.Digest == first.Digest {
		t.Errorf("second %+v", second)
	}
	for ref, want := range map[string]string{first.Digest.String(): "alpha", second.Commit.String(): "ALPHA!", second.Head: "ALPHA!"} {
		res := casJSON[restoreReport](t, "restore", ref, out, "--store", store)
		got, err := os.ReadFile(filepath.Join(out, "a.txt"))
		if err != nil || string(got) != want || res.Files != 2 || res.Symlinks != 1 {
			t.Errorf("restored %q of %s, %v; %+v", got, ref, err, res)
		}
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
	}
	casJSON[restoreReport](t, "restore", second.Head, out, "--path", "src", "--store", store)
	if got, err := os.ReadFile(filepath.Join(out, "b.txt")); err != nil || string(got) != "beta" {
		t.Errorf("partial restore: %q, %v", got, err)
	}
	line := casJSON[entryLine](t, "diff", first.Digest.String(), second.Head, "--store", store)
	if line.Change != "modified" || line.Path != "a.txt" || line.Size != 6 {
		t.Errorf("diff %+v", line)
	}
}

func TestCasLists(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "d/raw\xff"), "x")
	put(t, filepath.Join(work, "other"), "y")
	snap := casJSON[snapshotReport](t, "snapshot", work, "--store", store, "--head", "mine")
	if h := casJSON[headLine](t, "ls", "--store", store); h.Head != "mine" || h.Digest != snap.Digest || h.Seq != 1 {
		t.Errorf("head %+v", h)
	}
	if l := casJSON[entryLine](t, "ls", "mine", "d", "--store", store); string(l.PathBytes) != "d/raw\xff" || l.Type != "file" || l.Size != 1 {
		t.Errorf("entry %+v", l)
	}
	out, err := runnerdRun(t, "cas", "ls", "mine", "--store", store)
	if err != nil || strings.Count(out, "\n") != 3 || !strings.Contains(out, `"d/raw\xff"`) {
		t.Errorf("listing %q, %v", out, err)
	}
	if st := casJSON[statsReport](t, "stats", "--store", store); st.Heads != 1 || st.Packs != 1 || st.Objects != 5 {
		t.Errorf("stats %+v", st)
	}
	if st := casJSON[statsReport](t, "rebuild", "--store", store); st.Objects != 5 {
		t.Errorf("rebuilt %+v", st)
	}
}

func TestCasVerifyNamesDamage(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "f"), "some content")
	casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	if r := casJSON[verifyReport](t, "verify", "--store", store); !r.OK || r.Heads != 1 || r.Records != 3 {
		t.Errorf("whole store: %+v", r)
	}
	pack := filepath.Join(store, "packs", "0000000000000001.pack")
	b, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("some content"))] ^= 1
	if err := os.WriteFile(pack, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runnerdRun(t, "cas", "verify", "--store", store, "--json")
	var r verifyReport
	if jsonErr := json.Unmarshal([]byte(out), &r); err == nil || jsonErr != nil {
		t.Fatalf("verify: %v, %v: %s", err, jsonErr, out)
	}
	if r.OK || len(r.Damaged) != 1 || len(r.Missing) != 1 || r.Missing[0].Path != "f" {
		t.Errorf("damaged store: %+v", r)
	}
}

func TestCasGC(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	for _, content := range []string{"one", "two", "three"} {
		put(t, filepath.Join(work, "f"), content)
		casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	}
	if r := casJSON[gcReport](t, "gc", "--store", store); r.Removed != 0 || r.Kept != 9 {
		t.Errorf("with all history kept: %+v", r)
	}
	if r := casJSON[gcReport](t, "gc", "--keep", "1", "--store", store); r.Removed != 6 || r.Kept != 3 || r.BytesFreed == 0 {
		t.Errorf("with one commit kept: %+v", r)
	}
	if r := casJSON[verifyReport](t, "verify", "--store", store); !r.OK || r.Commits != 1 || r.Records != 3 {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestCasRefuses(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "f"), "x")
	casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	tests := []struct {
		name, want string
		args       []string
	}{
		{"no store flag", "store", []string{"stats"}},
		{"no such store", "holds no store", []string{"stats", "--store", t.TempDir()}},
		{"no such head", "neither a digest nor a head", []string{"ls", "nothing", "--store", store}},
		{"no such digest", "not found", []string{"ls", "sha256:" + strings.Repeat("0a", 32), "--store", store}},
		{"destination in use", "not empty", []string{"restore", "cli:" + work, work, "--store", store}},
		{"no such directory", "no such file", []string{"snapshot", filepath.Join(work, "none"), "--store", store}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := runnerdRun(t, append([]string{"cas"}, tt.args...)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) || out != "" {
				t.Errorf("printed %q, error %v, want %q", out, err, tt.want)
			}
		})
	}
}

// TestCasRefusalsSayWhy: a mistake is named with what to do about it, and is not
// called damage.
func TestCasRefusalsSayWhy(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "a.txt"), "alpha")
	casJSON[snapshotReport](t, "snapshot", work, "--store", store)
	file := casJSON[entryLine](t, "ls", "cli:"+work, "a.txt", "--store", store).Digest.String()
	refuse := func(want string, args ...string) {
		t.Helper()
		_, err := runnerdRun(t, append([]string{"cas"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%q: %v", args, err)
		}
	}
	refuse("neither a tree nor a commit", "ls", file, "--store", store)
	refuse("neither a tree nor a commit", "restore", file, filepath.Join(work, "new"), "--store", store)
	refuse("--store is empty", "ls", "--store", "")
	refuse("choose another directory", "restore", "cli:"+work, store, "--replace", "--store", store)
	refuse("all zeros", "ls", "sha256:"+strings.Repeat("0", 64), "--store", store)
	refuse("pin:NAME", "ls", "nothing", "--store", store)
	refuse("pins: not found", "ls", "pin:nothing", "--store", store)
	refuse("UID -5", "restore", "cli:"+work, filepath.Join(work, "new"), "--uid", "-5", "--store", store)
	if err := os.Remove(filepath.Join(store, "meta.db")); err != nil {
		t.Fatal(err)
	}
	refuse("--recover-meta", "ls", "--store", store)
	if err := os.Remove(filepath.Join(store, "format")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ls", "verify"} {
		if _, err := runnerdRun(t, "cas", command, "--store", store); err == nil || !strings.Contains(err.Error(), "format is missing but there are packs") {
			t.Errorf("%s without the format file: %v", command, err)
		}
	}
}
