package peer

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
)

const (
	pemPrivate = "PRIVATE KEY"
	pemPublic  = "PUBLIC KEY"
)

var (
	errPrivateKey = errors.New("not an Ed25519 private key in PEM (PKCS 8); make one with `runnerd cas keygen`")
	errPublicKey  = errors.New("not an Ed25519 public key in PEM; `runnerd cas keygen` writes one beside the private key")
)

// MarshalKey returns both halves of a signing key in PEM.
func MarshalKey(key ed25519.PrivateKey) (private, public []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: pub}), nil
}

// ParsePrivateKey reads the private half.
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemPrivate {
		return nil, errPrivateKey
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errPrivateKey
	}
	return key, nil
}

// ParsePublicKey reads the public half.
func ParsePublicKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemPublic {
		return nil, errPublicKey
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return nil, errPublicKey
	}
	return key, nil
}
