package cas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// DigestSize is the length of a digest in bytes.
const DigestSize = sha256.Size

const digestPrefix = "sha256:"

// Digest is the SHA-256 of an object's uncompressed content. It is comparable
// and usable as a map key; the zero value names no object.
type Digest struct{ sum [DigestSize]byte }

// DigestOf returns the digest of content.
func DigestOf(content []byte) Digest { return Digest{sha256.Sum256(content)} }

// DigestFromBytes makes a digest of its 32 raw bytes.
func DigestFromBytes(raw []byte) (Digest, error) {
	var d Digest
	if len(raw) != DigestSize {
		return d, fmt.Errorf("digest of %d bytes, want %d: %w", len(raw), DigestSize, ErrInvalid)
	}
	copy(d.sum[:], raw)
	return d, nil
}

// ParseDigest reads "sha256:<64 hex digits>", or the hex digits alone.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits := strings.TrimPrefix(s, digestPrefix)
	if len(digits) != 2*DigestSize {
		return d, fmt.Errorf("digest %.80q: want sha256: and %d hex digits: %w", s, 2*DigestSize, ErrInvalid)
	}
	if _, err := hex.Decode(d.sum[:], []byte(digits)); err != nil {
		return Digest{}, fmt.Errorf("digest %.80q: %w: %w", s, err, ErrInvalid)
	}
	return d, nil
}

// IsZero reports whether d names no object.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns "sha256:<64 hex digits>", or "" for the zero digest.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return digestPrefix + d.Hex()
}

// Hex returns the 64 hex digits alone.
func (d Digest) Hex() string { return hex.EncodeToString(d.sum[:]) }

// Bytes returns the 32 raw bytes as a fresh slice.
func (d Digest) Bytes() []byte { return bytes.Clone(d.sum[:]) }

// Compare orders digests by their raw bytes.
func (d Digest) Compare(o Digest) int { return bytes.Compare(d.sum[:], o.sum[:]) }

// MarshalText implements encoding.TextMarshaler; the zero digest is "".
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Digest{}
		return nil
	}
	parsed, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
