package egress

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// credentialFixture is a gateway that adds a header for a.example:80 alone, and
// a server that answers with what it got.
func credentialFixture(t *testing.T) (f *fixture, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("first-value\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://b.example/", http.StatusFound)
			return
		}
		fmt.Fprintf(w, "got %q and %q", r.Header.Values("Authorization"), r.Header.Values("X_Api-Key"))
	})
	f = newFixture(t, func(_ *Config, p *Policy) {
		p.Headers = []Header{{Rule: mustRules(t, "a.example:80")[0], Name: "Authorization", Prefix: "Bearer ", File: file},
			{Rule: mustRules(t, "a.example:80")[0], Name: "X-Api-Key", File: file}}
	}, map[string][]string{"a.example": {"198.51.99.1"}, "b.example": {"198.51.99.1"}},
		map[string]string{"198.51.99.1:80": server, "198.51.99.1:8080": server}, "a.example", "a.example:8080", "b.example")
	return f, file
}

func TestTheGatewayAddsCredentials(t *testing.T) {
	f, file := credentialFixture(t)
	if got := f.get(t, "http://a.example/"); !strings.Contains(got, `got ["Bearer first-value"] and []`) {
		t.Errorf("%s", got)
	}
	// It is for one host and port.
	for _, uri := range []string{"http://b.example/", "http://a.example:8080/"} {
		if got := f.get(t, uri); !strings.Contains(got, "got [] and []") {
			t.Errorf("%s: %s", uri, got)
		}
	}
	// What the client sends under that name, in whatever spelling, is replaced,
	// and it can't have the header taken out.
	got := f.ask(t, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nauthorization: mine\r\nX_API_KEY: mine\r\nConnection: authorization, x-api-key\r\n\r\n")
	if !strings.Contains(got, `got ["Bearer first-value"] and []`) || strings.Contains(got, "mine") {
		t.Errorf("%s", got)
	}
	// A redirect is the client's to follow, and is another request.
	if got := f.get(t, "http://a.example/away"); !strings.Contains(got, "302") || strings.Contains(got, "first-value") {
		t.Errorf("%s", got)
	}
	if err := os.WriteFile(file, []byte("second-value"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := f.get(t, "http://a.example/"); !strings.Contains(got, "Bearer second-value") {
		t.Errorf("a changed value is not used: %s", got)
	}
	f.Close()
	if log := f.log.String(); strings.Contains(log, "-value") || !strings.Contains(log, "decision=allow") {
		t.Errorf("log: %s", log)
	}
}

// A value that can't be had ends the request: without it the server would
// answer as to nobody, and the agent would look for the cause in vain.
func TestACredentialThatCannotBeHad(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"missing":   os.Remove,
		"empty":     func(f string) error { return os.WriteFile(f, []byte("\n"), 0o600) },
		"too large": func(f string) error { return os.WriteFile(f, []byte(strings.Repeat("hidden", 2000)), 0o600) },
		"two lines": func(f string) error { return os.WriteFile(f, []byte("hidden\nX-Other: hidden\n"), 0o600) },
		"directory": func(f string) error { _ = os.Remove(f); return os.Mkdir(f, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			f, file := credentialFixture(t)
			if err := spoil(file); err != nil {
				t.Fatal(err)
			}
			answer := f.get(t, "http://a.example/")
			wantRefused(t, answer, 502, reasonCredential)
			if strings.Contains(answer, "hidden") || strings.Contains(answer, file) || !strings.Contains(answer, "the operator has to mend") {
				t.Errorf("%s", answer)
			}
		})
	}
}

func TestHeaderNames(t *testing.T) {
	for name, ok := range map[string]bool{"Authorization": true, "X-Api-Key": true, "": false, "a b": false, "a:b": false,
		"Host": false, "content-length": false, "Transfer-Encoding": false, "Connection": false, "Proxy-Authorization": false} {
		if err := CheckHeaderName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A flood of allowed requests must not hide what was denied.
func TestAllowedRequestsDoNotHideDenials(t *testing.T) {
	server := web(t, hello)
	f := newFixture(t, nil, map[string][]string{"a.example": {"198.51.99.1"}}, map[string]string{"198.51.99.1:80": server}, "a.example")
	for range auditBurst + 50 {
		f.get(t, "http://a.example/")
	}
	f.get(t, "http://evil.example/")
	f.log.await(t, "target=evil.example:80", "decision=deny")
	if n := strings.Count(f.log.String(), "decision=allow"); n > auditBurst+auditRate*60 {
		t.Errorf("%d records of allowed requests", n)
	}
}
