package coordinator

import (
	"math/big"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
)

// Headers by which a coordinator that passes a call on to the leader says whose
// client certificate the call came with. They are believed of coordinators alone.
const (
	headerPeerRole    = "Skerry-Peer-Role"
	headerPeerName    = "Skerry-Peer-Name"
	headerPeerSerial  = "Skerry-Peer-Serial"
	headerPeerExpires = "Skerry-Peer-Expires"
)

// peerNone as the role says that the caller showed no certificate.
const peerNone = "none"

// vouch replaces, in the header of a call that goes on to the leader, whatever
// the caller claimed by what its certificate says.
func vouch(out http.Header, in *http.Request) {
	for _, name := range []string{headerPeerRole, headerPeerName, headerPeerSerial, headerPeerExpires} {
		out.Del(name)
	}
	peer, ok := peerOf(in)
	if !ok {
		// Without a word the call would be taken for this coordinator's own.
		out.Set(headerPeerRole, peerNone)
		return
	}
	out.Set(headerPeerRole, peer.Role)
	out.Set(headerPeerName, peer.Name)
	out.Set(headerPeerSerial, peer.Serial)
	out.Set(headerPeerExpires, strconv.FormatInt(peer.Expires.Unix(), 10))
}

// peerOf tells whose certificate a call came with, here or at the coordinator
// that passed it on.
func peerOf(r *http.Request) (pki.Peer, bool) {
	peer, ok := pki.PeerOf(r.TLS)
	if !ok || peer.Role != pki.RoleCoordinator || r.Header.Get(headerPeerRole) == "" {
		return peer, ok
	}
	serial, good := new(big.Int).SetString(r.Header.Get(headerPeerSerial), 16)
	expires, err := strconv.ParseInt(r.Header.Get(headerPeerExpires), 10, 64)
	if !good || err != nil {
		return pki.Peer{}, false
	}
	return pki.Peer{Cluster: peer.Cluster, Role: r.Header.Get(headerPeerRole), Name: r.Header.Get(headerPeerName),
		Serial: r.Header.Get(headerPeerSerial), Issued: pki.IssuedAt(serial), Expires: time.Unix(expires, 0)}, true
}

// authenticatePeer identifies a caller without a token by its certificate; ok is
// false where there is none, or the call itself came from a coordinator that
// passes on one which had neither.
func (c *Coordinator) authenticatePeer(r *http.Request, now time.Time) (id identity, refusal *problem.Error, ok bool) {
	if r.Header.Get("Authorization") != "" {
		return id, nil, false
	}
	peer, ok := peerOf(r)
	if !ok {
		return id, nil, false
	}
	if refusal := c.refusePeer(peer, now); refusal != nil {
		return id, refusal, true
	}
	return identity{role: peer.Role, subject: peer.Name, certificate: true}, nil, true
}

// refusePeer says why a certificate is no good, nil: it is.
func (c *Coordinator) refusePeer(peer pki.Peer, now time.Time) *problem.Error {
	if now.After(peer.Expires) {
		return noCertificate("the certificate has expired")
	}
	return c.refuseDenied(peer)
}

func (c *Coordinator) refuseDenied(peer pki.Peer) *problem.Error {
	holder := c.state.Read().Holder(peer.Role, peer.Name)
	switch {
	case holder == nil:
		return noCertificate("the cluster knows no such member")
	case state.Denied(holder, timestamppb.New(peer.Issued)):
		return noCertificate("the certificate was denied")
	}
	return nil
}

// noCertificate is a refusal of a member, which a new join token cures.
func noCertificate(why string) *problem.Error {
	e := unauthenticated(why)
	e.Remedy = "write a new join token (skerry cluster join-token) to the member's join_token_file"
	return e
}
