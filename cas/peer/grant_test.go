package peer

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"skerry.internal/cas"
)

func TestGrantIsAcceptedByWhomItIsFor(t *testing.T) {
	a := newAuthority()
	root := cas.DigestOf([]byte("tree"))
	token := a.grant(t, root, func(g *Grant) { g.MaxBytes = 7 })
	v := a.verifier()
	g, err := v.Verify(token, "rcv")
	if err != nil || g.Root != root || g.Source != "src" || g.Audience != "rcv" || g.MaxBytes != 7 || g.ID == (GrantID{}) {
		t.Fatalf("%+v, %v", g, err)
	}
	if seen, err := Inspect(token); err != nil || seen != g {
		t.Fatalf("inspected %+v, %v; want %+v", seen, err, g)
	}
	if other := a.grant(t, root); other == token {
		t.Error("two grants have one id")
	}
}

func TestGrantIsRefused(t *testing.T) {
	a, root := newAuthority(), cas.DigestOf([]byte("tree"))
	stranger := &authority{ed25519.NewKeyFromSeed(noise(1, ed25519.SeedSize))}
	good := a.grant(t, root)
	body, sig, _ := strings.Cut(strings.TrimPrefix(good, "skg1."), ".")
	for name, c := range map[string]struct {
		token, receiver string
		later           time.Duration
		want            Reason
	}{
		"expired":             {token: good, later: 61 * time.Minute, want: GrantExpired},
		"on its last second":  {token: good, later: time.Hour, want: GrantExpired},
		"not yet":             {token: good, later: -time.Minute, want: GrantExpired},
		"other receiver":      {token: good, receiver: "mallory", want: GrantAudience},
		"stranger's":          {token: stranger.grant(t, root), want: GrantInvalid},
		"other source":        {token: a.grant(t, root, func(g *Grant) { g.Source = "elsewhere" }), want: GrantInvalid},
		"empty":               {token: "", want: GrantInvalid},
		"no signature":        {token: "skg1." + body, want: GrantInvalid},
		"short signature":     {token: "skg1." + body + "." + sig[:80], want: GrantInvalid},
		"signature of other":  {token: "skg1." + body + "." + strings.Split(stranger.grant(t, root), ".")[2], want: GrantInvalid},
		"line end in it":      {token: good[:50] + "\n" + good[50:], want: GrantInvalid},
		"other version":       {token: "skg2." + body + "." + sig, want: GrantInvalid},
		"very long":           {token: good + strings.Repeat("A", 5000), want: GrantInvalid},
		"not the zeros' form": {token: good[:len(good)-1] + string(good[len(good)-1]+1), want: GrantInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			v := a.verifier()
			v.Now = func() time.Time { return time.Now().Add(c.later) }
			if _, err := v.Verify(c.token, c.receiver); ReasonOf(err) != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestGrantCannotBeChanged flips every bit of a token's bytes.
func TestGrantCannotBeChanged(t *testing.T) {
	a := newAuthority()
	v := a.verifier()
	body, sig, err := decodeToken(a.grant(t, cas.DigestOf([]byte("tree"))))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{body, sig} {
		for i := range part {
			for bit := range 8 {
				part[i] ^= 1 << bit
				if g, err := v.Verify(encodeToken(body, sig), "rcv"); ReasonOf(err) == "" {
					t.Fatalf("byte %d bit %d: %+v, %v", i, bit, g, err)
				}
				part[i] ^= 1 << bit
			}
		}
	}
}

func TestGrantIsNotSigned(t *testing.T) {
	a := newAuthority()
	for name, change := range map[string]func(*Grant){
		"no tree":       func(g *Grant) { g.Root = cas.Digest{} },
		"no receiver":   func(g *Grant) { g.Audience = "" },
		"long receiver": func(g *Grant) { g.Audience = strings.Repeat("a", 129) },
		"control bytes": func(g *Grant) { g.Source = "a\nb" },
		"no life":       func(g *Grant) { g.NotAfter = g.NotBefore },
		"long life":     func(g *Grant) { g.NotAfter = g.NotBefore.Add(MaxGrantLife + time.Second) },
	} {
		g := NewGrant(cas.DigestOf(nil), "src", "rcv", time.Now(), time.Hour)
		change(&g)
		if _, err := g.Sign(a.key); ReasonOf(err) != GrantInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysSurviveTheirFiles(t *testing.T) {
	a := newAuthority()
	private, public, err := MarshalKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePrivateKey(private)
	if err != nil || !key.Equal(a.key) {
		t.Errorf("private: %v", err)
	}
	pub, err := ParsePublicKey(public)
	if err != nil || !pub.Equal(a.key.Public()) {
		t.Errorf("public: %v", err)
	}
	if _, err := ParsePrivateKey(public); err == nil {
		t.Error("a public key passes as a private one")
	}
	if _, err := ParsePublicKey(private); err == nil {
		t.Error("a private key passes as a public one")
	}
}

func FuzzToken(f *testing.F) {
	a := newAuthority()
	g := NewGrant(cas.DigestOf(nil), "src", "rcv", time.Unix(1_700_000_000, 0), time.Hour)
	token, err := g.Sign(a.key)
	if err != nil {
		f.Fatal(err)
	}
	body, sig, _ := decodeToken(token)
	f.Add(body, sig)
	f.Add(base64.StdEncoding.AppendEncode(nil, body), sig)
	f.Fuzz(func(t *testing.T, body, sig []byte) {
		g, key, err := decodeGrant(body)
		if err != nil {
			return
		}
		if again := g.encode(key); string(again) != string(body) {
			t.Errorf("%x decodes and encodes to %x", body, again)
		}
	})
}
