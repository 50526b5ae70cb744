package peer

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"skerry.internal/cas"
)

const (
	maxPeerName = 128
	// MaxGrantLife is the longest time that a grant may be valid.
	MaxGrantLife = 7 * 24 * time.Hour
	// clockSkew is how far apart the clocks of two hosts may be.
	clockSkew = 30 * time.Second
)

// GrantID tells grants apart, for accounting and logs.
type GrantID [16]byte

// String returns it in hex.
func (id GrantID) String() string { return hex.EncodeToString(id[:]) }

// Grant allows one receiver to read one snapshot of one source, for a time.
type Grant struct {
	ID        GrantID
	Root      cas.Digest // of the tree
	Source    string     // name of the store or runner that may answer
	Audience  string     // name of the receiver that may ask
	NotBefore time.Time  // in whole seconds, as NotAfter
	NotAfter  time.Time
	MaxBytes  uint64 // of records sent for it in all; 0: no limit
}

// NewGrant makes a grant with a fresh id, valid from now.
func NewGrant(root cas.Digest, source, audience string, now time.Time, life time.Duration) Grant {
	g := Grant{Root: root, Source: source, Audience: audience, NotBefore: now.Truncate(time.Second), NotAfter: now.Add(life).Truncate(time.Second)}
	_, _ = rand.Read(g.ID[:]) // never fails
	return g
}

func (g *Grant) check() error {
	life := g.NotAfter.Sub(g.NotBefore)
	switch {
	case g.Root.IsZero():
		return failure(GrantInvalid, "name the tree's digest", "grant without a tree")
	case !validName(g.Source):
		return failure(GrantInvalid, "use 1 to 128 printable ASCII characters without spaces", "grant's source %.200q", g.Source)
	case !validName(g.Audience):
		return failure(GrantInvalid, "use 1 to 128 printable ASCII characters without spaces", "grant's receiver %.200q", g.Audience)
	case life <= 0 || life > MaxGrantLife:
		return failure(GrantInvalid, fmt.Sprintf("choose more than 0 s and at most %s", MaxGrantLife), "grant's life of %s", life)
	}
	return nil
}

func validName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= maxPeerName
}

// Sign returns the token that stands for g.
func (g *Grant) Sign(key ed25519.PrivateKey) (string, error) {
	if err := g.check(); err != nil {
		return "", err
	}
	body := g.encode(KeyIDOf(key.Public().(ed25519.PublicKey))) //nolint:forcetypeassert // by its documentation
	return encodeToken(body, ed25519.Sign(key, signedText(body))), nil
}

// signedText keeps the signature from meaning anything but a grant.
func signedText(body []byte) []byte { return append([]byte("skerry peer grant 1\x00"), body...) }

// Inspect reads a token without checking who signed it: for the receiver,
// which passes it on.
func Inspect(token string) (Grant, error) {
	body, _, err := decodeToken(token)
	if err != nil {
		return Grant{}, err
	}
	g, _, err := decodeGrant(body)
	return g, err
}

// Verifier is who checks grants.
type Verifier struct {
	Keys []ed25519.PublicKey // that may sign; several while a key is replaced
	// Current gives more of them, as they are at each call; may be nil.
	Current func() []ed25519.PublicKey
	Source  string           // this side's own name
	Now     func() time.Time // nil: time.Now
}

// Verify checks that the token is genuine, for this source, valid now, and
// given to receiver. An empty receiver is one that the transport did not
// authenticate: then whoever holds the token may use it.
func (v *Verifier) Verify(token, receiver string) (Grant, error) {
	body, sig, err := decodeToken(token)
	if err != nil {
		return Grant{}, err
	}
	g, id, err := decodeGrant(body)
	if err != nil {
		return Grant{}, err
	}
	if !v.signed(id, body, sig) {
		return Grant{}, failure(GrantInvalid, "ask the coordinator for a grant", "the grant is signed by no key that this source trusts")
	}
	if g.Source != v.Source {
		return Grant{}, failure(GrantInvalid, "ask the source that it names", "the grant is for another source")
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	t := now()
	if t.Before(g.NotBefore.Add(-clockSkew)) || !t.Before(g.NotAfter) {
		return Grant{}, failure(GrantExpired, "ask for a new grant; if it is new, compare the hosts' clocks",
			"the grant is valid from %s to %s", g.NotBefore.UTC().Format(time.RFC3339), g.NotAfter.UTC().Format(time.RFC3339))
	}
	if receiver != "" && receiver != g.Audience {
		return Grant{}, failure(GrantAudience, "ask for a grant of your own", "the grant was given to another receiver")
	}
	return g, nil
}

func (v *Verifier) signed(id KeyID, body, sig []byte) bool {
	keys := v.Keys
	if v.Current != nil {
		keys = append(slices.Clone(keys), v.Current()...)
	}
	for _, key := range keys {
		if KeyIDOf(key) == id && ed25519.Verify(key, signedText(body), sig) {
			return true
		}
	}
	return false
}
