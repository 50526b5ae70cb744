package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"
)

// Roles that a certificate can have.
const (
	RoleCoordinator = "coordinator"
	RoleRunner      = "runner"
)

// Scheme of the URI in a certificate that says whose it is.
const Scheme = "skerry"

// Peer is who a certificate of the cluster is for.
type Peer struct {
	Cluster string
	Role    string
	Name    string
	// Serial number in hex.
	Serial string
	// Issued is when the cluster signed it, to the millisecond; it is part of the
	// serial number, as NotBefore leaves room for clocks that differ.
	Issued  time.Time
	Expires time.Time
}

// ErrNotOurs is a certificate that names no peer of a cluster.
var ErrNotOurs = errors.New("certificate names no peer of a cluster")

// URI is what stands in the peer's certificate: skerry://CLUSTER/ROLE/NAME.
func (p Peer) URI() *url.URL {
	return &url.URL{Scheme: Scheme, Host: p.Cluster, Path: "/" + p.Role + "/" + p.Name}
}

// PeerOf tells who is at the other end of a TLS connection that a configuration
// of an Identity verified; false: it showed no certificate.
func PeerOf(state *tls.ConnectionState) (Peer, bool) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return Peer{}, false
	}
	peer, err := PeerOfCertificate(state.PeerCertificates[0])
	return peer, err == nil
}

// PeerOfCertificate reads whom a certificate is for; it verifies nothing.
func PeerOfCertificate(cert *x509.Certificate) (Peer, error) {
	if len(cert.URIs) != 1 || cert.URIs[0].Scheme != Scheme || cert.URIs[0].RawQuery != "" {
		return Peer{}, ErrNotOurs
	}
	uri := cert.URIs[0]
	role, name, ok := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
	if !ok || uri.Host == "" || name == "" || strings.Contains(name, "/") {
		return Peer{}, fmt.Errorf("%w: %s", ErrNotOurs, uri)
	}
	if role != RoleCoordinator && role != RoleRunner {
		return Peer{}, fmt.Errorf("%w: role %q", ErrNotOurs, role)
	}
	return Peer{Cluster: uri.Host, Role: role, Name: name, Serial: cert.SerialNumber.Text(16),
		Issued: IssuedAt(cert.SerialNumber), Expires: cert.NotAfter}, nil
}

// A serial number has 64 bits of Unix milliseconds and then 63 random ones.
const serialRandom = 63

// SerialNumber makes one for a certificate issued at t; random are its other 63 bits.
func SerialNumber(t time.Time, random uint64) *big.Int {
	serial := big.NewInt(t.UnixMilli())
	serial.Lsh(serial, serialRandom)
	return serial.Or(serial, new(big.Int).SetUint64(random>>1))
}

// IssuedAt is when a certificate with this serial number was issued.
func IssuedAt(serial *big.Int) time.Time {
	return time.UnixMilli(new(big.Int).Rsh(serial, serialRandom).Int64())
}
