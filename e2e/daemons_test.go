package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// certificate writes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// freePort gives an address that stays free while its server is away: it is
// below the ports that the kernel gives to connections, which other tests make.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+mathrand.IntN(12000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close()
		return address
	}
	t.Fatal("no free port from 20000 to 31999")
	return ""
}

// process is a daemon under test.
type process struct {
	t    *testing.T
	name string
	args []string
	log  output
	cmd  *exec.Cmd
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command(filepath.Join(binDir, p.name), p.args...)
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The two daemons as an admin installs them: separate processes, files of
// configuration, TLS, tokens made with the first admin token; each is killed in
// the middle of an execution.
func TestDaemonsApart(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	api := freePort(t)
	head := &process{t: t, name: "coordinator", args: []string{"--config", writeFile(t, dir+"/coordinator.yaml",
		fmt.Sprintf("data_dir: %s/head\nlisten: %s\nmetrics_listen: \"\"\ntls: {cert_file: %s, key_file: %s}\n", dir, api, cert, key))}}
	node := &process{t: t, name: "runnerd", args: []string{"--config", writeFile(t, dir+"/runnerd.yaml",
		fmt.Sprintf("data_dir: %s/node\nname: node1\nlabels: {rack: a}\ncoordinators: [https://%s]\ntoken_file: %s/node.token\ntls: {ca_file: %s}\nmetrics_listen: \"\"\n", dir, api, dir, cert))}}
	t.Cleanup(func() {
		for _, p := range []*process{head, node} {
			if p.cmd != nil {
				p.kill()
			}
			if t.Failed() {
				t.Logf("%s said:\n%s", p.name, p.log.String())
			}
		}
	})
	d := &dev{t: t}
	d.ready.Endpoint = "https://" + api
	head.start()
	d.eventually("the admin token", func() bool {
		b, err := os.ReadFile(dir + "/head/admin.token")
		d.ready.Token = strings.TrimSpace(string(b))
		return err == nil
	})
	pool := x509.NewCertPool()
	pemBytes, _ := os.ReadFile(cert)
	pool.AppendCertsFromPEM(pemBytes)
	client := func(token string) *client {
		h := &http.Client{Transport: tlsBearer{token, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}}
		return &client{ex: rpc.NewExecutionServiceClient(h, d.ready.Endpoint, connect.WithGRPC()), files: rpc.NewFileServiceClient(h, d.ready.Endpoint),
			tok: rpc.NewTokenServiceClient(h, d.ready.Endpoint), run: rpc.NewRunnerServiceClient(h, d.ready.Endpoint)}
	}
	admin := client(d.ready.Token)
	var res *connect.Response[skerryv1.CreateTokenResponse]
	d.eventually("the coordinator answers", func() (ok bool) {
		var err error
		res, err = admin.tok.CreateToken(t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Role: "runner", Subject: "node1"}))
		return err == nil
	})
	writeFile(t, dir+"/node.token", res.Msg.Secret+"\n")
	node.start()
	up := func() bool {
		list, err := admin.run.ListRunners(t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		return err == nil && len(list.Msg.Runners) == 1 && list.Msg.Runners[0].State == "up" && list.Msg.Runners[0].Labels["rack"] == "a"
	}
	d.eventually("the runner is up", up)
	alice, err := admin.tok.CreateToken(t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "alice"}))
	if err != nil {
		t.Fatal(err)
	}
	c := client(alice.Msg.Secret)
	wantState(t, c.sh(t, "echo hi > f"), "completed", "exited")
	long := c.start(t, "sleep 3; cat f; exit 5", nil)
	head.kill()
	head.start()
	node.kill()
	node.start()
	d.eventually("the runner is up again", up)
	d.eventually("calls reach it", func() bool { // its state is from before the crash at first
		_, err := c.ex.GetExecution(t.Context(), connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: long.Id}))
		return err == nil
	})
	e := c.wait(t, long.Id)
	wantState(t, e, "failed", "exited")
	if e.Verdict.GetExitCode() != 5 || e.Stdout.Text != "hi\n" || e.Runner != "node1" || e.Agent != "alice" {
		t.Fatalf("record %v", e)
	}
}

type tlsBearer struct {
	token string
	next  http.RoundTripper
}

func (b tlsBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}
