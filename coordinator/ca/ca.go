// Package ca is a cluster's own certificate authority: it makes the key and
// signs certificates of coordinators and runners. Who may have one is decided
// elsewhere; where the key is kept too.
package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"skerry.internal/proto/identity"
)

const (
	// Life of an authority; it is rotated long before.
	Life = 10 * 365 * 24 * time.Hour
	// Clocks of hosts may be behind by as much.
	backdate = 5 * time.Minute
)

// ErrRequest is wrapped by every refusal of a certificate request.
var ErrRequest = errors.New("certificate request")

// Authority can sign. Its fields are what is stored, in DER.
type Authority struct {
	Certificate []byte
	Key         []byte

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority of a cluster.
func New(cluster string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: identity.SerialNumber(now, random()),
		Subject:      pkix.Name{CommonName: "Skerry cluster " + cluster, SerialNumber: strconv.FormatInt(now.UnixMilli(), 36)},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(Life),
		// One below: the authority that follows is certified by this one.
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return Load(der, raw)
}

// Load reads what New made.
func Load(certificate, key []byte) (*Authority, error) {
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("authority's key: %w", err)
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !private.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("authority: the key is not the certificate's")
	}
	return &Authority{Certificate: certificate, Key: key, cert: cert, key: private}, nil
}

// Certify gives the authority next a certificate by a, in DER.
func (a *Authority) Certify(next *Authority) ([]byte, error) {
	template := *next.cert
	template.MaxPathLen, template.MaxPathLenZero = 0, true
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, next.cert.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certify the next authority: %w", err)
	}
	return der, nil
}

// Pin is what join tokens have of the authority.
func (a *Authority) Pin() string { return identity.Pin(a.cert) }

// PEM is the certificate as members trust it.
func (a *Authority) PEM() []byte { return EncodeCertificate(a.Certificate) }

// EncodeCertificate is a certificate in PEM.
func EncodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Sign gives the owner of the key in request a certificate as peer, for life
// from now, in PEM; hosts are names and addresses that it is good for as well.
// Nothing but the key is taken from the request.
func (a *Authority) Sign(request []byte, peer identity.Peer, hosts []string, now time.Time, life time.Duration) ([]byte, error) {
	public, err := PublicKey(request)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: identity.SerialNumber(now, random()),
		Subject:      pkix.Name{CommonName: peer.Name, OrganizationalUnit: []string{peer.Role}},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:        []*url.URL{peer.URI()},
		DNSNames:    []string{identity.ServerName},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return EncodeCertificate(der), nil
}

// PublicKey checks a request, in DER, and gives its key: ECDSA on P-256, whose
// owner made the request.
func PublicKey(request []byte) (*ecdsa.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	public, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: want an ECDSA key on P-256", ErrRequest)
	}
	return public, nil
}

// KeyHash tells keys apart: SHA-256 of the request's public key.
func KeyHash(request []byte) ([]byte, error) {
	csr, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	return sum[:], nil
}

func random() uint64 {
	var raw [8]byte
	// crypto/rand.Read never fails on Linux; it crashes the program instead.
	_, _ = rand.Read(raw[:])
	return binary.BigEndian.Uint64(raw[:])
}
