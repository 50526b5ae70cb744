package egress

import (
	"archive/zip"
	"bytes"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.internal/sandbox"
	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

const boxUID = 54321

// box makes real sandboxes whose way out is the fixture's gateway.
type box struct {
	host      *sandbox.Host
	workspace string
	n         int
}

func newBox(t testing.TB) *box {
	t.Helper()
	sandboxtest.RequireBwrap(t)
	dir := t.TempDir()
	b := &box{workspace: filepath.Join(dir, "ws")}
	state := filepath.Join(dir, "state")
	for _, d := range []string{state, b.workspace} {
		if err := os.Mkdir(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 {
		if err := os.Chown(b.workspace, boxUID, boxUID); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if b.host, err = sandbox.Open(t.Context(), sandbox.Config{Shim: shimBinary, StateDir: state}); err != nil {
		t.Fatal(err)
	}
	sandboxtest.Require(t, b.host.Report().Require(sandbox.NetworkAllowed))
	return b
}

// boxGroup is the group of the sandboxes' user on the host.
func boxGroup() int {
	if os.Getuid() == 0 {
		return boxUID
	}
	return os.Getgid()
}

// run runs a command in a sandbox that leads to the gateway's directory.
func (b *box) run(t testing.TB, egressDir string, env map[string]string, args ...string) (stdout, stderr string) {
	t.Helper()
	p := sandbox.Policy{Workspace: b.workspace, Args: args, Env: env, Network: sandbox.NetworkAllowlist, Egress: egressDir}
	if os.Getuid() == 0 {
		p.HostUID, p.HostGID = boxUID, boxUID
	}
	b.n++
	spec, err := b.host.Command(fmt.Sprintf("ex_%d_%d", os.Getpid(), b.n), p)
	if err != nil {
		t.Fatal(err)
	}
	spec.Timeout = time.Minute
	dir := filepath.Join(t.TempDir(), "exec")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
	if err != nil {
		t.Fatal(err)
	}
	exit, err := h.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, errs, err := supervisor.Summary(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Kind != supervisor.KindExited {
		t.Errorf("%v ended %+v", args[0], exit)
	}
	return string(out.Head) + string(out.Tail), string(errs.Head) + string(errs.Tail)
}

// openBox gives the directory of an execution's socket, passable for the
// sandboxes' user.
func (f *fixture) openBox(t testing.TB, execution string) string {
	t.Helper()
	dir, err := f.Open(execution, "test", boxGroup())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// index is a PyPI-like index with one package, a Git repository and a page.
func index(t *testing.T) http.HandlerFunc {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"demo.py":                     "print('demo works')\n",
		"demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/RECORD":   "demo.py,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/RECORD,,\n",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(text))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(t.TempDir(), "demo.git")
	git(t, "init", "-q", "-b", "main", repo+".work")
	git(t, "-C", repo+".work", "-c", "user.name=a", "-c", "user.email=a@a.example", "commit", "-q", "--allow-empty", "-m", "first of the repository")
	git(t, "clone", "-q", "--bare", repo+".work", repo)
	git(t, "-C", repo, "update-server-info")
	mux := http.NewServeMux()
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") })
	mux.HandleFunc("/simple/demo/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!DOCTYPE html><html><body><a href="/files/demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a></body></html>`)
	})
	mux.HandleFunc("/files/demo-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel.Bytes()) })
	mux.Handle("/demo.git/", http.StripPrefix("/demo.git/", http.FileServer(http.Dir(repo))))
	return mux.ServeHTTP
}

func git(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}

// The tools of every day work unchanged, through names that only the gateway
// can resolve.
func TestToolsInTheSandbox(t *testing.T) {
	for _, tool := range []string{"/usr/bin/curl", "/usr/bin/git", "/usr/bin/python3"} {
		if _, err := os.Stat(tool); err != nil {
			sandboxtest.Require(t, err)
		}
	}
	if err := exec.Command("/usr/bin/python3", "-m", "pip", "--version").Run(); err != nil {
		sandboxtest.Require(t, fmt.Errorf("no pip for /usr/bin/python3: %w", err))
	}
	b := newBox(t)
	cert, _ := certificate(t, "pkg.example")
	handler := index(t)
	secure := serveOn(t, tlsListener(t, cert), handler)
	plain := web(t, handler)
	f := newFixture(t, nil, map[string][]string{"pkg.example": {publicAddr}}, map[string]string{publicAddr + ":443": secure, publicAddr + ":80": plain}, "pkg.example")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	if err := os.WriteFile(filepath.Join(b.workspace, "ca.pem"), ca, 0o644); err != nil {
		t.Fatal(err)
	}
	const caFile = "/workspace/ca.pem"
	env := map[string]string{"CURL_CA_BUNDLE": caFile, "SSL_CERT_FILE": caFile, "PIP_CERT": caFile, "GIT_SSL_CAINFO": caFile, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
	for name, c := range map[string]struct{ script, want string }{
		"curl":         {"curl -sS https://pkg.example/page", "the page"},
		"curl http":    {"curl -sS http://pkg.example/page", "the page"},
		"urllib":       {`python3 -c 'import urllib.request as r; print(r.urlopen("https://pkg.example/page").read().decode())'`, "the page\n"},
		"urllib http":  {`python3 -c 'import urllib.request as r; print(r.urlopen("http://pkg.example/page").read().decode())'`, "the page\n"},
		"pip":          {"python3 -m pip install -q --no-input --target lib --index-url https://pkg.example/simple demo && PYTHONPATH=lib python3 -m demo", "demo works\n"},
		"git":          {"git clone -q https://pkg.example/demo.git demo && git -C demo log --format=%s", "first of the repository\n"},
		"denied curl":  {"curl -sS https://evil.example/ 2>&1; echo $?", "curl: (56) CONNECT tunnel failed, response 403\n56\n"},
		"denied plain": {"curl -sS http://evil.example/ | tail -1", `If the work needs this host, ask the operator of runner "node1" to extend network.policies.test.allow.` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := f.openBox(t, "ex_"+strings.ReplaceAll(name, " ", "_"))
			stdout, stderr := b.run(t, dir, env, "bash", "-c", c.script)
			if stdout != c.want {
				t.Errorf("stdout %q, stderr %q\n%s", stdout, stderr, f.log)
			}
		})
	}
	stdout, _ := b.run(t, f.openBox(t, "ex_deny"), env, "python3", "-c", `
import urllib.request as r
try: r.urlopen("https://evil.example/")
except Exception as e: print(e)`)
	if !strings.Contains(stdout, "403 Denied by Skerry network policy test (not_allowed), do not retry") {
		t.Errorf("Python says %q", stdout)
	}
}

// I7: hostile code in the sandbox tries every other way out.
func TestI7HostileCodeInTheSandbox(t *testing.T) {
	b := newBox(t)
	secret := web(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "leaked") })
	_, secretPort, _ := net.SplitHostPort(secret)
	abstract, err := net.Listen("unix", "@skerry-test-"+secretPort)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	f := newFixture(t, nil, map[string][]string{"re.example": {publicAddr, "127.0.0.1"}, "local.example": {"127.0.0.1"}},
		map[string]string{publicAddr + ":" + secretPort: "127.0.0.1:1"}, "re.example:"+secretPort, "local.example:"+secretPort)
	mine, other := f.openBox(t, "ex_mine"), f.openBox(t, "ex_other")
	stdout, stderr := b.run(t, mine, nil, "python3", "-c", `
import glob, os, socket, sys, threading
port, other, abstract = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def proxy(data, to=("127.0.0.1", 3128)):
    s = socket.create_connection(to, 10); s.settimeout(20)
    s.sendall(data)
    out = b""
    try:
        while True:
            b = s.recv(65536)
            if not b: break
            out += b
    except OSError: pass
    s.close()
    return out
def line(data): return proxy(data).split(b"\r\n")[0].decode()
def attempt(name, f):
    try: print(name + ":", f())
    except OSError as e: print(name + ":", type(e).__name__, e.errno)
def connect(*to): socket.create_connection(to, 3); return "CONNECTED"
for host in ["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]", "127.0.0.1", "localhost"]:
    for port_ in (80, port):
        r = line(b"GET http://%b:%d/latest/ HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host.encode(), port_, host.encode(), port_))
        c = line(b"CONNECT %b:%d HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host.encode(), port_, host.encode(), port_))
        if " 403 " not in r or " 403 " not in c: print("LEAK", host, port_, r, c)
print("local name:", line(b"GET http://local.example:%d/ HTTP/1.1\r\nHost: local.example:%d\r\n\r\n" % (port, port))[:12])
for i in range(3):
    print("rebinding", i, line(b"GET http://re.example:%d/ HTTP/1.1\r\nHost: re.example:%d\r\n\r\n" % (port, port))[:12])
print("other port:", line(b"CONNECT re.example:22 HTTP/1.1\r\nHost: re.example:22\r\n\r\n")[:12])
print("smuggled:", line(b"POST http://re.example/ HTTP/1.1\r\nHost: re.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://local.example/ HTTP/1.1\r\n\r\n")[:12])
print("other host:", line(b"GET http://re.example/ HTTP/1.1\r\nHost: local.example\r\n\r\n")[:12])
print("socks:", proxy(b"\x05\x01\x00\r\n\r\n")[:12].decode())
attempt("host's server", lambda: connect("127.0.0.1", port))
attempt("internet", lambda: connect("8.8.8.8", 53))
attempt("ipv6", lambda: connect("2001:4860:4860::8888", 53))
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("8.8.8.8", 53)); return "SENT"
attempt("udp", udp)
def unix(path):
    s = socket.socket(socket.AF_UNIX); s.connect(path); return "CONNECTED"
attempt("other execution", lambda: unix(other))
attempt("abstract", lambda: unix("\0" + abstract[1:]))
print("seen:", os.path.exists("/.skerry/net/gateway.sock"), sorted(glob.glob("/.skerry/*")))
attempt("remove", lambda: os.unlink("/.skerry/net/gateway.sock"))
attempt("rename", lambda: os.rename("/.skerry/net/gateway.sock", "/tmp/x"))
attempt("chmod", lambda: os.chmod("/.skerry/net/gateway.sock", 0))
try: print("name:", socket.getaddrinfo("re.example", 80))
except OSError as e: print("name:", type(e).__name__)
flood = []
for i in range(500):
    s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 3128)); flood.append(s)
for s in flood: s.close()
`, secretPort, filepath.Join(other, sandbox.EgressSocket), "@skerry-test-"+secretPort)
	want := `local name: HTTP/1.1 403
rebinding 0 HTTP/1.1 502
rebinding 1 HTTP/1.1 403
rebinding 2 HTTP/1.1 403
other port: HTTP/1.1 403
smuggled: HTTP/1.1 400
other host: HTTP/1.1 400
socks: HTTP/1.1 400
host's server: ConnectionRefusedError 111
internet: OSError 101
ipv6: OSError 101
udp: OSError 101
other execution: FileNotFoundError 2
abstract: ConnectionRefusedError 111
seen: True ['/.skerry/control', '/.skerry/init', '/.skerry/net']
remove: OSError 30
rename: OSError 18
chmod: OSError 30
name: gaierror
`
	if stdout != want {
		t.Errorf("got:\n%s\nwant:\n%s\nstderr %s", stdout, want, stderr)
	}
	if d := f.dialled(); strings.Trim(strings.ReplaceAll(d, publicAddr+":"+secretPort, ""), " ") != "" {
		t.Errorf("dialled %s", d)
	}
}

// 200 executions in sandboxes leave no descriptor, file or connection behind.
func TestNothingIsLeftBySandboxes(t *testing.T) {
	if testing.Short() {
		t.Skip("200 sandboxes take some seconds")
	}
	b := newBox(t)
	address := web(t, hello)
	f := newFixture(t, nil, nil, nil, address)
	one := func(i int) {
		id := fmt.Sprintf("ex_s%d", i)
		dir := f.openBox(t, id)
		stdout, stderr := b.run(t, dir, nil, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://"+address+"/ HTTP/1.1\\r\\nHost: "+address+"\\r\\n\\r\\n' >&3; head -1 <&3")
		if stdout != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("%d: %q, %q\n%s", i, stdout, stderr, f.log)
		}
		f.Release(id)
	}
	one(0)
	descriptors := open(t)
	for i := range 200 {
		one(i + 1)
	}
	eventually(t, "no connection is open", func() bool { return f.conns.Load() == 0 })
	eventually(t, "descriptors are as before", func() bool { return open(t) <= descriptors })
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d directories left, %v", len(entries)-1, err)
	}
}

// The same as an ordinary user, whose sandboxes share its uid.
func TestAsOrdinaryUser(t *testing.T) {
	sandboxtest.AsOrdinaryUser(t, shimBinary, "I7Hostile|ToolsIn|Resume|SocketsApart")
}
