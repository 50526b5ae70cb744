package ca_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"skerry.internal/coordinator/ca"
	"skerry.internal/proto/identity"
)

const cluster = "cl_test"

func authority(t *testing.T) *ca.Authority {
	t.Helper()
	a, err := ca.New(cluster, time.Now().Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// member makes an identity with a certificate by a that was issued at now.
func member(t *testing.T, a *ca.Authority, role, name string, now time.Time, life time.Duration) *identity.Identity {
	t.Helper()
	i, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	install(t, i, a, role, name, now, life, a.PEM())
	return i
}

func install(t *testing.T, i *identity.Identity, a *ca.Authority, role, name string, now time.Time, life time.Duration, bundle []byte) {
	t.Helper()
	request, err := i.Request(name)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Sign(request, identity.Peer{Cluster: cluster, Role: role, Name: name}, nil, now, life)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Install(cert, bundle); err != nil {
		t.Fatal(err)
	}
}

// handshake connects both ways of a pipe and gives what the server saw.
func handshake(t *testing.T, server, client *tls.Config) (identity.Peer, error, error) {
	t.Helper()
	a, b := net.Pipe()
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := c.Handshake()
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1)) // a refusal of the client's certificate comes after its handshake
		}
		done <- err
		_ = b.Close()
	}()
	serverErr := s.Handshake()
	var peer identity.Peer
	if serverErr == nil {
		state := s.ConnectionState()
		peer, _ = identity.PeerOf(&state)
		_, _ = s.Write([]byte{1})
	}
	_ = a.Close()
	return peer, serverErr, <-done
}

func TestMembersKnowEachOther(t *testing.T) {
	a, now := authority(t), time.Now()
	server := member(t, a, identity.RoleCoordinator, "c1", now, time.Hour)
	runner := member(t, a, identity.RoleRunner, "r1", now, time.Hour)
	peer, serr, cerr := handshake(t, server.ServerTLS(), runner.ClientTLS(identity.RoleCoordinator))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if peer.Name != "r1" || peer.Role != identity.RoleRunner || peer.Cluster != cluster {
		t.Errorf("server saw %+v", peer)
	}
	if d := peer.Issued.Sub(now).Abs(); d > time.Millisecond {
		t.Errorf("issued %v away from the truth", d)
	}
	if at := runner.RenewAt().Sub(now); at < 39*time.Minute || at > 41*time.Minute {
		t.Errorf("renewal after %v of an hour", at)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	a, now := authority(t), time.Now()
	server := member(t, a, identity.RoleCoordinator, "c1", now, time.Hour)
	runner := member(t, a, identity.RoleRunner, "r1", now, time.Hour)
	other := member(t, authority(t), identity.RoleCoordinator, "c1", now, time.Hour)
	expired := member(t, a, identity.RoleCoordinator, "c2", now.Add(-2*time.Hour), time.Hour)
	coordinators := server.ServerMutualTLS(identity.RoleCoordinator)
	for name, c := range map[string]struct{ server, client *tls.Config }{
		"client of another authority":     {server.ServerTLS(), other.ClientTLS(identity.RoleCoordinator)},
		"server of another authority":     {other.ServerTLS(), runner.ClientTLS(identity.RoleCoordinator)},
		"runner among coordinators":       {coordinators, runner.ClientTLS(identity.RoleCoordinator)},
		"expired among coordinators":      {coordinators, expired.ClientTLS(identity.RoleCoordinator)},
		"nobody among coordinators":       {coordinators, identity.PinnedTLS(a.Pin())},
		"runner in a coordinator's place": {runner.ServerTLS(), server.ClientTLS(identity.RoleCoordinator)},
		"expired server":                  {expired.ServerTLS(), runner.ClientTLS(identity.RoleCoordinator)},
		"pin of another authority":        {server.ServerTLS(), identity.PinnedTLS(authority(t).Pin())},
	} {
		t.Run(name, func(t *testing.T) {
			if _, serr, cerr := handshake(t, c.server, c.client); serr == nil && cerr == nil {
				t.Error("they talk to each other")
			}
		})
	}
}

func TestPinLetsAJoinerIn(t *testing.T) {
	a, now := authority(t), time.Now()
	server := member(t, a, identity.RoleCoordinator, "c1", now, time.Hour)
	if _, serr, cerr := handshake(t, server.ServerTLS(), identity.PinnedTLS(a.Pin())); serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
}

// A server may be anybody who has the authority's public certificate: that
// alone must not satisfy a pin.
func TestPinIsNotSatisfiedByAQuotedAuthority(t *testing.T) {
	a, now := authority(t), time.Now()
	mine := authority(t)
	server := member(t, mine, identity.RoleCoordinator, "c1", now, time.Hour)
	c := server.ServerTLS()
	get := c.GetCertificate
	c.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := get(h)
		if err != nil {
			return nil, err
		}
		out := *cert
		out.Certificate = append(append([][]byte(nil), cert.Certificate...), a.Certificate)
		return &out, nil
	}
	_, _, cerr := handshake(t, c, identity.PinnedTLS(a.Pin()))
	if cerr == nil || errors.Is(cerr, identity.ErrPin) {
		t.Errorf("joiner's error: %v", cerr)
	}
}

func TestExpiredIsSeenByTheServer(t *testing.T) {
	a, now := authority(t), time.Now()
	server := member(t, a, identity.RoleCoordinator, "c1", now, time.Hour)
	expired := member(t, a, identity.RoleRunner, "r1", now.Add(-2*time.Hour), time.Hour)
	peer, serr, cerr := handshake(t, server.ServerTLS(), expired.ClientTLS(identity.RoleCoordinator))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if peer.Name != "r1" || !peer.Expires.Before(now) {
		t.Errorf("server saw %+v", peer)
	}
}

// The authority changes while both sides run: first both are trusted, then the
// new one signs, then the old one goes.
func TestRotationWithoutRestart(t *testing.T) {
	before, after, now := authority(t), authority(t), time.Now()
	server := member(t, before, identity.RoleCoordinator, "c1", now, time.Hour)
	client := member(t, before, identity.RoleRunner, "r1", now, time.Hour)
	s, c := server.ServerTLS(), client.ClientTLS(identity.RoleCoordinator)
	both := append(before.PEM(), after.PEM()...)
	step := func(what string, change func()) {
		change()
		if _, serr, cerr := handshake(t, s, c); serr != nil || cerr != nil {
			t.Fatalf("%s: %v, %v", what, serr, cerr)
		}
	}
	step("before", func() {})
	step("server trusts both", func() { install(t, server, before, identity.RoleCoordinator, "c1", now, time.Hour, both) })
	step("client trusts both", func() { install(t, client, before, identity.RoleRunner, "r1", now, time.Hour, both) })
	step("server has the new", func() { install(t, server, after, identity.RoleCoordinator, "c1", now, time.Hour, both) })
	step("client has the new", func() { install(t, client, after, identity.RoleRunner, "r1", now, time.Hour, both) })
	step("server forgets the old", func() { install(t, server, after, identity.RoleCoordinator, "c1", now, time.Hour, after.PEM()) })
	old := member(t, before, identity.RoleRunner, "r2", now, time.Hour)
	if _, serr, cerr := handshake(t, s, old.ClientTLS(identity.RoleCoordinator)); serr == nil && cerr == nil {
		t.Error("the old authority is still good")
	}
}

func TestIdentitySurvivesARestart(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	i, err := identity.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if i.Ready() {
		t.Error("ready without a certificate")
	}
	install(t, i, a, identity.RoleRunner, "r1", time.Now(), time.Hour, a.PEM())
	again, err := identity.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.Leaf() != i.Leaf() || !bytes.Equal(again.Authorities(), a.PEM()) {
		t.Errorf("%+v became %+v", i.Leaf(), again.Leaf())
	}
}

func TestInstallRefuses(t *testing.T) {
	a, now := authority(t), time.Now()
	i := member(t, a, identity.RoleRunner, "r1", now, time.Hour)
	before := i.Leaf()
	stranger, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sign := func(i *identity.Identity, cluster string) []byte {
		request, err := i.Request("x")
		if err != nil {
			t.Fatal(err)
		}
		cert, err := a.Sign(request, identity.Peer{Cluster: cluster, Role: identity.RoleRunner, Name: "r1"}, nil, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	for name, c := range map[string]struct{ cert, bundle []byte }{
		"another's key":       {sign(stranger, cluster), a.PEM()},
		"another cluster":     {sign(i, "cl_other"), a.PEM()},
		"another's authority": {sign(i, cluster), authority(t).PEM()},
		"no authority":        {sign(i, cluster), nil},
		"rubbish":             {[]byte("rubbish"), a.PEM()},
		"a key among them":    {sign(i, cluster), append(a.PEM(), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")...)},
	} {
		t.Run(name, func(t *testing.T) {
			if err := i.Install(c.cert, c.bundle); err == nil {
				t.Error("installed")
			}
			if i.Leaf() != before {
				t.Error("the certificate changed")
			}
		})
	}
}

func TestRequestsThatAreNotSigned(t *testing.T) {
	a := authority(t)
	good, err := member(t, a, identity.RoleRunner, "r", time.Now(), time.Hour).Request("r")
	if err != nil {
		t.Fatal(err)
	}
	bent := bytes.Clone(good)
	bent[len(bent)-1] ^= 1
	for name, request := range map[string][]byte{"empty": nil, "rubbish": []byte("x"), "bad signature": bent} {
		t.Run(name, func(t *testing.T) {
			if _, err := a.Sign(request, identity.Peer{Cluster: cluster, Role: identity.RoleRunner, Name: "r"}, nil, time.Now(), time.Hour); !errors.Is(err, ca.ErrRequest) {
				t.Errorf("error %v", err)
			}
		})
	}
}
