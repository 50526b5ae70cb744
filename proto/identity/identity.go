// Package identity is the certificate by which a coordinator or a runner proves
// to the others of its cluster who it is: how it is kept, asked for, renewed
// without a restart, and used for TLS. The cluster's own authority signs it; the
// coordinators hold that.
package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
)

const (
	keyFile = "key.pem"
	// certFile has the leaf and after it the authorities that are trusted: one file,
	// so that both change in one step.
	certFile = "identity.pem"
	dirMode  = 0o700
	fileMode = 0o600
)

// ErrNone is returned where a certificate is needed and none was installed yet.
var ErrNone = errors.New("this host has no certificate of a cluster yet")

// Identity is the key, the certificate and the trusted authorities of one
// process. It is safe for use by several goroutines.
type Identity struct {
	dir string
	key *ecdsa.PrivateKey
	// nil until a certificate is installed.
	current atomic.Pointer[material]
}

// material is one installed certificate and what goes with it; it never changes.
type material struct {
	cert tls.Certificate
	leaf *x509.Certificate
	// The authority that signed it.
	signer *x509.Certificate
	peer   Peer
	roots  *x509.CertPool
	// authorities in DER, as the bundle had them.
	authorities []*x509.Certificate
}

// Open reads what dir holds, and makes dir and a key where there is none. The
// key never leaves the host.
func Open(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	key, err := openKey(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	i := &Identity{dir: dir, key: key}
	text, err := os.ReadFile(filepath.Join(dir, certFile))
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	m, err := i.parse(text)
	if err != nil {
		return nil, fmt.Errorf("identity: %s: %w; remove it and join anew", filepath.Join(dir, certFile), err)
	}
	i.current.Store(m)
	return i, nil
}

func openKey(path string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(path)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no PEM key", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: want an ECDSA key, not %T", path, parsed)
	}
	return key, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, WriteSecret(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// Ready reports whether a certificate is installed.
func (i *Identity) Ready() bool { return i.current.Load() != nil }

// Leaf tells who this process is; zero before a certificate is installed.
func (i *Identity) Leaf() Peer {
	if m := i.current.Load(); m != nil {
		return m.peer
	}
	return Peer{}
}

// NotAfter is when the certificate expires; zero before one is installed.
func (i *Identity) NotAfter() time.Time {
	if m := i.current.Load(); m != nil {
		return m.leaf.NotAfter
	}
	return time.Time{}
}

// AuthorityNotAfter is when the authority that signed the certificate expires;
// zero before one is installed.
func (i *Identity) AuthorityNotAfter() time.Time {
	if m := i.current.Load(); m != nil {
		return m.signer.NotAfter
	}
	return time.Time{}
}

// Covers reports whether the certificate is good for names and addresses.
func (i *Identity) Covers(hosts []string) bool {
	m := i.current.Load()
	return m != nil && !slices.ContainsFunc(hosts, func(host string) bool { return m.leaf.VerifyHostname(host) != nil })
}

// Public is the public half of the key.
func (i *Identity) Public() crypto.PublicKey { return i.key.Public() }

// RenewAt is when to ask for the next certificate: after two thirds of this one's life.
func (i *Identity) RenewAt() time.Time {
	m := i.current.Load()
	if m == nil {
		return time.Time{}
	}
	return m.peer.Issued.Add(m.leaf.NotAfter.Sub(m.peer.Issued) * 2 / 3)
}

// Authorities are the certificates that are trusted, in PEM; nil before one is installed.
func (i *Identity) Authorities() []byte {
	m := i.current.Load()
	if m == nil {
		return nil
	}
	return encodeCerts(m.authorities)
}

func encodeCerts(certs []*x509.Certificate) (out []byte) {
	for _, cert := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return out
}

// Request asks, in DER, for a certificate in the name of name. Who signs it
// decides what it says; only the key counts.
func (i *Identity) Request(name string) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, i.key)
}

// Install makes certPEM this process's certificate, with what it is shown
// together with after it, and caPEM what it trusts,
// durably and at once: TLS configurations that were given out use them for
// their next connection. On an error nothing has changed.
func (i *Identity) Install(certPEM, caPEM []byte) error {
	text := append(append([]byte(nil), certPEM...), caPEM...)
	m, err := i.parse(text)
	if err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	if old := i.current.Load(); old != nil && old.peer.Cluster != m.peer.Cluster {
		return fmt.Errorf("install certificate: it is of cluster %s, this host of %s", m.peer.Cluster, old.peer.Cluster)
	}
	if err := WriteSecret(filepath.Join(i.dir, certFile), text); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	i.current.Store(m)
	return nil
}

// parse reads the leaf and the authorities after it. An expired leaf is no
// error: it may still be renewed for a time.
func (i *Identity) parse(text []byte) (*material, error) {
	certs, err := ParseCertificates(text)
	if err != nil {
		return nil, err
	}
	if len(certs) < 2 {
		return nil, errors.New("want a certificate and its authority")
	}
	leaf := certs[0]
	authorities, chain := partition(certs[1:])
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(i.key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	peer, err := PeerOfCertificate(leaf)
	if err != nil {
		return nil, err
	}
	m := &material{leaf: leaf, peer: peer, roots: x509.NewCertPool(), authorities: authorities,
		cert: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: i.key, Leaf: leaf}}
	for _, ca := range authorities {
		m.roots.AddCert(ca)
	}
	// An authority goes with the leaf, so that who joins can check its key.
	for _, ca := range authorities {
		if leaf.CheckSignatureFrom(ca) != nil {
			continue
		}
		m.signer = ca
		// What certifies the authority comes before it: OpenSSL takes the first that fits.
		for _, cert := range append(chain, ca) {
			m.cert.Certificate = append(m.cert.Certificate, cert.Raw)
		}
		return m, nil
	}
	return nil, errors.New("none of the authorities signed the certificate")
}

// partition tells authorities that certify themselves from certificates by which
// the one that signs is trusted by who trusts the one before.
func partition(certs []*x509.Certificate) (authorities, chain []*x509.Certificate) {
	for _, cert := range certs {
		if cert.CheckSignatureFrom(cert) == nil {
			authorities = append(authorities, cert)
		} else {
			chain = append(chain, cert)
		}
	}
	return authorities, chain
}

// ParseCertificates reads one or more certificates in PEM.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("want certificates alone, not %q", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("no PEM certificate")
	}
	return out, nil
}

// WriteSecret replaces path durably; nobody else can ever read it.
func WriteSecret(path string, text []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".identity-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, werr := f.Write(text)
	if err := errors.Join(werr, f.Chmod(fileMode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
