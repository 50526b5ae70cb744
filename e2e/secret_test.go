package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Secrets of a policy reach its commands and its servers, and nothing else: no
// record, no journal, no log, no error.
func TestSecretsAreNowhereElse(t *testing.T) {
	const inHeader, inEnv, inFile = "header-s3cr3t", "variable-s3cr3t", "file-s3cr3t"
	dir := t.TempDir()
	header := writeFile(t, filepath.Join(dir, "header"), inHeader+"\n")
	variable := writeFile(t, filepath.Join(dir, "variable"), inEnv+"\n")
	file := writeFile(t, filepath.Join(dir, "file"), inFile+"\n")
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 16)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		fmt.Fprint(w, "the page\n")
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	address := l.Addr().String()
	config := writeFile(t, filepath.Join(dir, "runnerd.yaml"), fmt.Sprintf(`
network:
  policies:
    web:
      allow: [%[1]q]
      public: true
      headers: [{host: %[1]q, name: Authorization, prefix: "Bearer ", value_file: %[2]s}]
      secrets: [{env: TOKEN, value_file: %[3]s}, {file: key, value_file: %[4]s}]
    bare: {allow: [%[1]q], public: true}
`, address, header, variable, file))
	d := newDevWith(t, []string{"--runner-config", config})
	c := d.admin()
	use := fetch(address) + `; [ "${TOKEN%-*}" = variable ] && grep -q ^file-s3 /run/secrets/key && echo both`
	e := c.wait(t, c.start(t, use, &skerryv1.RunOptions{Network: "web"}).Id)
	wantState(t, e, "completed", "exited")
	if e.Stdout.Text != "the page\nboth\n" || <-got != "Bearer "+inHeader {
		t.Errorf("%q %q", e.Stdout.Text, e.Stderr.GetText())
	}
	// Neither another policy nor none has them.
	for _, network := range []string{"bare", "none"} {
		e := c.wait(t, c.start(t, `echo "[${TOKEN-}]"; ls /run/secrets`, &skerryv1.RunOptions{Network: network}).Id)
		if e.State != "failed" || e.Stdout.Text != "[]\n" {
			t.Errorf("%s: %v", network, e)
		}
	}
	// A value that can't be read starts nothing; the record names the secret alone.
	if err := os.Remove(variable); err != nil {
		t.Fatal(err)
	}
	e = c.wait(t, c.start(t, "echo ran", &skerryv1.RunOptions{Network: "web"}).Id)
	wantState(t, e, "failed", "start_failed")
	if !strings.Contains(e.Verdict.Detail, "secret TOKEN: its value can't be read") || strings.Contains(e.Verdict.Detail, dir) {
		t.Errorf("%v", e.Verdict)
	}
	d.stop()
	wantAbsent(t, filepath.Join(d.dir, "data"), inHeader, inEnv, inFile)
	if log := d.log.String(); strings.Contains(log, "s3cr3t") {
		t.Errorf("the daemon's log: %s", log)
	}
}

// wantAbsent looks for the texts in every file below dir.
func wantAbsent(t *testing.T, dir string, texts ...string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				t.Errorf("%s has %q", path, text)
			}
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files read: %v", files, err)
	}
}
