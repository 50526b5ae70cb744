package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
)

// site is a source: a store with one tree, and a key.
type site struct {
	dir, store, key string
	tree            cas.Digest
}

// newSite makes a source of a tree of n files of size random bytes.
func newSite(t *testing.T, n, size int) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{dir: dir, store: filepath.Join(dir, "a"), key: filepath.Join(dir, "key")}
	work := filepath.Join(dir, "work")
	for i := range n {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		put(t, filepath.Join(work, fmt.Sprintf("d%d/f%d", i%7, i)), string(content))
	}
	s.tree = casJSON[snapshotReport](t, "snapshot", work, "--store", s.store).Digest
	if r := casJSON[keyReport](t, "keygen", s.key); len(r.KeyID) != 16 || r.Public != s.key+".pub" {
		t.Errorf("%+v", r)
	}
	return s
}

// grant writes a token for receiver to a file and returns the flag's value.
func (s *site) grant(t *testing.T, receiver string, more ...string) string {
	t.Helper()
	r := casJSON[grantReport](t, append([]string{"grant", "--key", s.key, "--tree", s.tree.String(), "--for", receiver}, more...)...)
	path := filepath.Join(s.dir, "grant-"+receiver)
	put(t, path, r.Grant+"\n")
	return "@" + path
}

// process runs the command until it is killed or ends.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *bufio.Reader
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"cas", "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "SKERRY_RUNNERD_MAIN=1")
	stdout, err1 := cmd.StdoutPipe()
	stderr, err2 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() })
	return &process{cmd, bufio.NewReader(stdout), bufio.NewReader(stderr)}
}

// serve starts the source and returns its URL.
func (s *site) serve(t *testing.T, more ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"serve", "--store", s.store, "--grant-key", s.key + ".pub"}, more...)...)
	var r serveReport
	if err := json.NewDecoder(p.stdout).Decode(&r); err != nil {
		text, _ := io.ReadAll(p.stderr)
		t.Fatalf("%v: %s", err, text)
	}
	return p, r.URL
}

// end stops a server in order.
func (p *process) end(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// progressTo reads progress until so many objects have arrived.
func (p *process) progressTo(t *testing.T, objects int64) {
	t.Helper()
	for {
		line, err := p.stderr.ReadString('\n')
		if err != nil {
			t.Fatalf("the pull ended first: %q, %v", line, err)
		}
		var now peer.Progress
		if json.Unmarshal([]byte(line), &now) == nil && now.Objects >= objects {
			return
		}
	}
}

func TestCasPull(t *testing.T) {
	s := newSite(t, 30, 1000)
	server, url := s.serve(t)
	store, out := filepath.Join(s.dir, "b"), filepath.Join(s.dir, "out")
	r := casJSON[pullReport](t, "pull", "--from", url, "--grant", s.grant(t, "me"), "--store", store, "--pin", "p")
	if r.Digest != s.tree || r.Blobs != 30 || r.Directories != 8 || r.Bytes < 30_000 || r.Pin != "p" || r.Seconds <= 0 {
		t.Errorf("%+v", r)
	}
	if again := casJSON[pullReport](t, "pull", "--from", url, "--grant", s.grant(t, "me"), "--store", store); again.Bytes != 0 {
		t.Errorf("again %+v", again)
	}
	server.end(t)
	if r := casJSON[restoreReport](t, "restore", s.tree.String(), out, "--store", store); r.Files != 30 {
		t.Errorf("restore %+v", r)
	}
	for i := range 30 {
		name := fmt.Sprintf("d%d/f%d", i%7, i)
		want, err1 := os.ReadFile(filepath.Join(s.dir, "work", name))
		got, err2 := os.ReadFile(filepath.Join(out, name))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) {
			t.Errorf("%s differs, %v", name, err)
		}
	}
}

func TestCasPullIsRefused(t *testing.T) {
	s := newSite(t, 1, 10)
	_, url := s.serve(t)
	good := s.grant(t, "me")
	other := newSite(t, 1, 10)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no grant":          {[]string{"pull", "--from", url}, "--grant @FILE"},
		"no token":          {[]string{"pull", "--from", url, "--grant", "x"}, "malformed"},
		"stranger's":        {[]string{"pull", "--from", url, "--grant", other.grant(t, "me")}, "no key that this source trusts"},
		"other source":      {[]string{"pull", "--from", url, "--grant", s.grant(t, "x", "--source", "elsewhere")}, "another source"},
		"spent":             {[]string{"pull", "--from", url, "--grant", s.grant(t, "y", "--max-bytes", "50")}, "bytes were sent; ask for a grant of more bytes; the limit is 50 bytes"},
		"in the clear":      {[]string{"pull", "--from", "http://192.0.2.1:1", "--grant", good}, "in the clear"},
		"other scheme":      {[]string{"pull", "--from", "ftp://127.0.0.1", "--grant", good}, "http://HOST:PORT"},
		"bad bandwidth":     {[]string{"pull", "--from", url, "--grant", good, "--bandwidth", "fast"}, "--bandwidth"},
		"serve in clear":    {[]string{"serve", "--listen", "0.0.0.0:0", "--grant-key", s.key + ".pub"}, "not a loopback address"},
		"serve without key": {[]string{"serve"}, "grant-key"},
		"private as public": {[]string{"serve", "--grant-key", s.key}, "public key"},
		"key exists":        {[]string{"keygen", s.key}, "exists"},
		"grant for ever":    {[]string{"grant", "--key", s.key, "--tree", s.tree.String(), "--for", "me", "--expires", "1000h"}, "at most 168h"},
		"grant without key": {[]string{"grant", "--tree", s.tree.String(), "--for", "me"}, "SKERRY_GRANT_SIGNING_KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"cas"}, c.args...)
			if c.args[0] == "pull" || c.args[0] == "serve" {
				store := filepath.Join(t.TempDir(), "b")
				if c.args[0] == "serve" {
					store = other.store
				}
				args = append(args, "--store", store)
			}
			if out, err := runnerdRun(t, args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v; want %q", out, err, c.want)
			}
		})
	}
}

// lackingOf counts the source's objects that the receiver has not got.
func (s *site) lackingOf(t *testing.T, store string) (lacking, all int64) {
	t.Helper()
	from, err1 := cas.Open(t.Context(), s.store+".copy", cas.Config{})
	to, err2 := cas.Open(t.Context(), store, cas.Config{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = from.Close(), to.Close() }()
	seen := map[cas.Digest]bool{s.tree: true}
	err := from.Walk(t.Context(), s.tree, "", func(_ string, x cas.Entry) error { seen[x.Digest] = true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	for d := range seen {
		if ok, err := to.Has(t.Context(), d); err != nil {
			t.Fatal(err)
		} else if !ok {
			lacking++
		}
	}
	return lacking, int64(len(seen))
}

// TestKillNineOfATransfer kills the receiver or the source in the middle of
// transfers. The receiver's store is whole each time, and the last transfer
// brings what lacks and nothing else.
func TestKillNineOfATransfer(t *testing.T) {
	for _, victim := range []string{"receiver", "source"} {
		t.Run(victim, func(t *testing.T) {
			s := newSite(t, 150, 60_000)
			if out, err := exec.Command("cp", "-a", s.store, s.store+".copy").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			store := filepath.Join(s.dir, "b")
			before := int64(1 << 30)
			for range 3 {
				server, url := s.serve(t, "--bandwidth", "2MiB")
				pull := start(t, "pull", "--from", url, "--grant", s.grant(t, "me"), "--store", store, "--pin", "p", "--progress")
				pull.progressTo(t, 15)
				if victim == "receiver" {
					pull.kill()
					server.end(t)
				} else {
					server.kill()
					text, _ := io.ReadAll(pull.stderr)
					if err := pull.cmd.Wait(); err == nil || !strings.Contains(string(text), "try again; what has arrived is kept") {
						t.Fatalf("%v: %s", err, text)
					}
				}
				if r := casJSON[verifyReport](t, "verify", "--store", store); !r.OK {
					t.Fatalf("%+v", r)
				}
				lacking, _ := s.lackingOf(t, store)
				if lacking >= before {
					t.Errorf("%d objects lack, before %d", lacking, before)
				}
				before = lacking
			}
			server, url := s.serve(t)
			r := casJSON[pullReport](t, "pull", "--from", url, "--grant", s.grant(t, "me"), "--store", store, "--pin", "p")
			server.end(t)
			lacking, all := s.lackingOf(t, store)
			if r.Directories+r.Blobs != before || lacking != 0 || before > all-15 {
				t.Errorf("%+v; before it %d of %d lacked, now %d", r, before, all, lacking)
			}
		})
	}
}

// certificate writes a certificate and its key, signed by the parent or by itself.
func certificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true}
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, name+".pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	put(t, filepath.Join(dir, name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return c, key
}

// TestCasPullOverTLS: a receiver needs a certificate, and a grant for its name.
func TestCasPullOverTLS(t *testing.T) {
	s := newSite(t, 3, 1000)
	ca, caKey := certificate(t, s.dir, "ca", nil, nil)
	for _, name := range []string{"source", "me", "mallory"} {
		certificate(t, s.dir, name, ca, caKey)
	}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	_, url := s.serve(t, "--tls-cert", file("source.pem"), "--tls-key", file("source.key"), "--tls-client-ca", file("ca.pem"))
	grant := s.grant(t, "me")
	pull := func(name string) (string, error) {
		args := []string{"cas", "pull", "--from", url, "--grant", grant, "--store", file("store-" + name), "--tls-ca", file("ca.pem")}
		if name != "" {
			args = append(args, "--tls-cert", file(name+".pem"), "--tls-key", file(name+".key"))
		}
		return runnerdRun(t, args...)
	}
	if out, err := pull("me"); err != nil || !strings.Contains(out, s.tree.String()) {
		t.Errorf("with certificate and grant: %q, %v", out, err)
	}
	if _, err := pull("mallory"); err == nil || !strings.Contains(err.Error(), "another receiver") {
		t.Errorf("with another's grant: %v", err)
	}
	if _, err := pull(""); err == nil {
		t.Error("without a certificate it was answered")
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "1": 1, "4096": 4096, "10MiB": 10 << 20, "1.5KiB": 1536, "2 GB": 2e9, "500KB": 500_000, "7B": 7} {
		if n, err := parseBytes(text); err != nil || n != want {
			t.Errorf("%q is %d, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "x", "MiB", "1e30TB", "NaN", "Inf", "0.5"} {
		if n, err := parseBytes(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
