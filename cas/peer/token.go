package peer

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"skerry.internal/cas"
)

const (
	tokenPrefix = "skg1."
	maxToken    = 1024
)

var (
	grantMagic = [4]byte{'S', 'K', 'G', 1}
	tokenText  = base64.RawURLEncoding.Strict()
)

// KeyID names a signing key: the first bytes of its public half's SHA-256.
type KeyID [8]byte

// KeyIDOf returns the id of a key.
func KeyIDOf(key ed25519.PublicKey) KeyID {
	sum := sha256.Sum256(key)
	return KeyID(sum[:8])
}

// encode returns the one encoding of g: magic, key id, grant id, root, times
// as Unix seconds and bytes, each 8 bytes big-endian, and the two names, each
// behind a byte that holds its length.
func (g *Grant) encode(key KeyID) []byte {
	b := append(make([]byte, 0, 128), grantMagic[:]...)
	b = append(b, key[:]...)
	b = append(b, g.ID[:]...)
	b = append(b, g.Root.Bytes()...)
	b = binary.BigEndian.AppendUint64(b, uint64(g.NotBefore.Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(g.NotAfter.Unix()))
	b = binary.BigEndian.AppendUint64(b, g.MaxBytes)
	for _, name := range []string{g.Source, g.Audience} {
		b = append(append(b, byte(len(name))), name...)
	}
	return b
}

const grantFixed = 4 + 8 + 16 + cas.DigestSize + 3*8

var errGrantForm = failure(GrantInvalid, "pass the token as it was given", "the grant is malformed")

// decodeGrant accepts what encode makes and nothing else.
func decodeGrant(body []byte) (g Grant, key KeyID, err error) {
	if len(body) < grantFixed || !bytes.Equal(body[:4], grantMagic[:]) {
		return g, key, errGrantForm
	}
	copy(key[:], body[4:])
	copy(g.ID[:], body[12:])
	if g.Root, err = cas.DigestFromBytes(body[28 : 28+cas.DigestSize]); err != nil {
		return g, key, err
	}
	numbers := body[28+cas.DigestSize : grantFixed]
	g.NotBefore = time.Unix(int64(binary.BigEndian.Uint64(numbers)), 0)
	g.NotAfter = time.Unix(int64(binary.BigEndian.Uint64(numbers[8:])), 0)
	g.MaxBytes = binary.BigEndian.Uint64(numbers[16:])
	rest := body[grantFixed:]
	for _, name := range []*string{&g.Source, &g.Audience} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return Grant{}, key, errGrantForm
		}
		*name, rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	if err := g.check(); err != nil {
		return Grant{}, key, err
	}
	if !bytes.Equal(g.encode(key), body) {
		return Grant{}, key, errGrantForm
	}
	return g, key, nil
}

func encodeToken(body, sig []byte) string {
	return tokenPrefix + tokenText.EncodeToString(body) + "." + tokenText.EncodeToString(sig)
}

func decodeToken(token string) (body, sig []byte, err error) {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	text, sigText, found := strings.Cut(rest, ".")
	if !ok || !found || len(token) > maxToken || strings.ContainsAny(token, "\r\n") {
		return nil, nil, errGrantForm
	}
	body, err = tokenText.DecodeString(text)
	if err == nil {
		sig, err = tokenText.DecodeString(sigText)
	}
	if err != nil || len(sig) != ed25519.SignatureSize {
		return nil, nil, errGrantForm
	}
	return body, sig, nil
}
