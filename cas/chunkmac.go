package cas

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// chunkMAC tells, with the store's own key, whether bytes are those of a
// chunk read before. It covers the chunk and the byte behind it (if there is
// one), since that byte decides where the chunk ends.
type chunkMAC [16]byte

const (
	macKeySize  = 16
	sealKeySize = 32
)

// macKey makes the MACs. It is GMAC with one nonce for all, hence a universal
// hash: two different strings, chosen without knowledge of the key, have
// equal tags with a probability below 2^-110. Nobody gets to know the key or
// a tag, so nobody can choose better.
type macKey struct {
	aead cipher.AEAD
	seal [sealKeySize]byte // for what is kept on disk
}

func newMACKey(raw []byte) (*macKey, error) {
	if len(raw) != macKeySize+sealKeySize {
		return nil, fmt.Errorf("chunk key of %d bytes: %w", len(raw), ErrInvalid)
	}
	block, err := aes.NewCipher(raw[:macKeySize])
	if err != nil {
		return nil, err
	}
	k := &macKey{seal: [sealKeySize]byte(raw[macKeySize:])}
	k.aead, err = cipher.NewGCM(block)
	return k, err
}

func (k *macKey) of(b []byte) chunkMAC {
	var nonce [12]byte
	var m chunkMAC
	k.aead.Seal(m[:0], nonce[:], nil, b)
	return m
}

// sealed returns the checksum of a memory on disk.
func (k *macKey) sealed(b []byte) []byte {
	h := hmac.New(sha256.New, k.seal[:])
	h.Write(b)
	return h.Sum(nil)
}

// loadMACKey reads the store's key, or makes one. A damaged one is replaced,
// which makes what was remembered with it worthless.
func loadMACKey(dir string) (*macKey, error) {
	path := filepath.Join(dir, "key")
	raw, err := os.ReadFile(path)
	if err == nil && len(raw) == macKeySize+sealKeySize {
		return newMACKey(raw)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	raw = make([]byte, macKeySize+sealKeySize)
	_, _ = rand.Read(raw) // never fails
	if err := replaceFile(path, raw); err != nil {
		return nil, err
	}
	return newMACKey(raw)
}

// replaceFile replaces a file in one step, readable by its owner only, but
// does not wait for the disk.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// zeroChunk is the chunk that begins where at least a whole longest chunk of
// zeros follows, such as in a hole.
type zeroChunk struct {
	bytes  []byte // all zero, a byte longer than the longest chunk; read only
	size   int
	digest Digest
}

var zeroes = sync.OnceValue(func() *zeroChunk {
	z := &zeroChunk{bytes: make([]byte, storeMaxChunk+1)}
	z.size = storeCDC.cut(z.bytes[:storeMaxChunk])
	z.digest = DigestOf(z.bytes[:z.size])
	return z
})
