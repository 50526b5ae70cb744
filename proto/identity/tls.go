package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ServerTLS presents the certificate, and asks clients for one: who gives none
// is let in without a name, who gives one that the cluster did not sign is
// refused. An expired one passes, so that it can be renewed: whoever acts on a
// Peer looks at its Expires.
func (i *Identity) ServerTLS() *tls.Config { return i.server(tls.RequestClientCert) }

// ServerMutualTLS lets in only clients with a certificate of the cluster that has
// not expired and a role that is one of roles.
func (i *Identity) ServerMutualTLS(roles ...string) *tls.Config {
	c := i.server(tls.RequireAnyClientCert)
	verify := c.VerifyConnection
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil {
			return err
		}
		return checkPeer(state, roles, time.Now())
	}
	return c
}

func (i *Identity) server(auth tls.ClientAuthType) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			m := i.current.Load()
			if m == nil {
				return nil, ErrNone
			}
			return &m.cert, nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			return i.verify(state.PeerCertificates[0], x509.ExtKeyUsageClientAuth)
		},
		// A resumed session would keep what was verified before a rotation.
		SessionTicketsDisabled: true,
	}
}

// ClientTLS presents the certificate, where there is one, and insists that the
// server has one of the cluster with the given role. Names of hosts play no
// part: a coordinator may be reached by any address.
func (i *Identity) ClientTLS(role string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Verified below, against the cluster's authorities of the moment.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		ServerName:         ServerName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m := i.current.Load()
			if m == nil {
				return nil, ErrNone
			}
			return &m.cert, nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the server showed no certificate")
			}
			if err := i.verify(state.PeerCertificates[0], x509.ExtKeyUsageServerAuth); err != nil {
				return err
			}
			return checkPeer(state, []string{role}, time.Now())
		},
	}
}

// ServerName is what members of a cluster ask a coordinator for, so that one
// which has another certificate for agents knows to present the cluster's.
const ServerName = "cluster.skerry.internal"

// verify checks who signed cert, at a time when it was valid: whether it still is
// checkPeer says.
func (i *Identity) verify(cert *x509.Certificate, usage x509.ExtKeyUsage) error {
	m := i.current.Load()
	if m == nil {
		return ErrNone
	}
	at := time.Now()
	if at.After(cert.NotAfter) {
		at = cert.NotAfter
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: m.roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return err
	}
	peer, err := PeerOfCertificate(cert)
	if err != nil {
		return err
	}
	if peer.Cluster != m.peer.Cluster {
		return fmt.Errorf("peer is of cluster %s, this host of %s", peer.Cluster, m.peer.Cluster)
	}
	return nil
}

func checkPeer(state tls.ConnectionState, roles []string, now time.Time) error {
	peer, ok := PeerOf(&state)
	if !ok {
		return ErrNotOurs
	}
	if now.After(peer.Expires) {
		return fmt.Errorf("the certificate of %s %q expired at %s", peer.Role, peer.Name, peer.Expires.Format(time.RFC3339))
	}
	for _, role := range roles {
		if peer.Role == role {
			return nil
		}
	}
	return fmt.Errorf("%q is a %s; want %v", peer.Name, peer.Role, roles)
}

// Pin is what a join token has of the authority: the SHA-256 of its public key, in hex.
func Pin(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// PinnedTLS is for who joins and trusts nothing yet: it insists on a coordinator
// whose certificate is signed by an authority with the key that pin names, which
// the coordinator sends along.
func PinnedTLS(pin string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		ServerName:         ServerName,
		VerifyConnection:   func(state tls.ConnectionState) error { return verifyPin(state, pin, time.Now()) },
	}
}

// ErrPin is a server whose authority is not the one that a join token names.
var ErrPin = errors.New("the server's authority is not the one that the join token names")

func verifyPin(state tls.ConnectionState, pin string, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	for _, ca := range state.PeerCertificates[1:] {
		if Pin(ca) != pin {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if err != nil {
			return err
		}
		return checkPeer(state, []string{RoleCoordinator}, now)
	}
	return ErrPin
}
