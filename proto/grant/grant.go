// Package grant signs the tokens that allow one runner to read one tree of
// another (docs/transfer-protocol.md). It is the coordinator's half: the other,
// which checks them, is cas/peer, of which the coordinator knows nothing.
package grant

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

const (
	maxName = 128
	maxLife = 7 * 24 * time.Hour
)

// ErrInvalid is a grant that no source would take.
var ErrInvalid = errors.New("grant: tree, names or life are not valid")

// Sign makes a token for the tree "sha256:...", to be read from source by
// audience, valid from now for life.
func Sign(key ed25519.PrivateKey, tree, source, audience string, now time.Time, life time.Duration) (string, error) {
	root, err := hex.DecodeString(strings.TrimPrefix(tree, "sha256:"))
	if err != nil || len(root) != sha256.Size || !validName(source) || !validName(audience) || life < time.Second || life > maxLife {
		return "", ErrInvalid
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return "", ErrInvalid
	}
	body := encode(public, root, source, audience, now, now.Add(life))
	sig := ed25519.Sign(key, append([]byte("skerry peer grant 1\x00"), body...))
	text := base64.RawURLEncoding
	return "skg1." + text.EncodeToString(body) + "." + text.EncodeToString(sig), nil
}

// encode lays the body out as docs/transfer-protocol.md has it; bytes are not limited.
func encode(key ed25519.PublicKey, root []byte, source, audience string, from, until time.Time) []byte {
	id := sha256.Sum256(key)
	b := append([]byte("SKG\x01"), id[:8]...)
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	b = append(append(b, random[:]...), root...)
	b = binary.BigEndian.AppendUint64(b, uint64(from.Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(until.Unix()))
	b = binary.BigEndian.AppendUint64(b, 0)
	for _, name := range []string{source, audience} {
		b = append(append(b, byte(len(name))), name...)
	}
	return b
}

func validName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}
