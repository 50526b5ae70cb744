package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// link is what lies between sender and receiver.
type link struct {
	name     string
	host     string // the sender's address
	in, out  []string
	tls      bool
	teardown func()
}

func loopback() *link { return &link{name: "loopback", host: "127.0.0.1", teardown: func() {}} }

// delayed makes two network namespaces that reach each other with 20 ms of
// round trip, by the kernel's netem or, where it has none, by a delayLine.
func delayed(ctx context.Context) (*link, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	a, b := fmt.Sprintf("casbench-a%d", os.Getpid()), fmt.Sprintf("casbench-b%d", os.Getpid())
	l := &link{name: "20 ms", host: "10.213.77.1", tls: true,
		in: []string{"ip", "netns", "exec", a}, out: []string{"ip", "netns", "exec", b}}
	clean := func() {
		_ = exec.Command("ip", "netns", "del", a).Run()
		_ = exec.Command("ip", "netns", "del", b).Run()
	}
	l.teardown = clean
	err := commands(ctx, "ip netns add "+a, "ip netns add "+b)
	if err == nil && netem(ctx, a, b) != nil {
		var stop func()
		if stop, err = delayLine(ctx, a, b); err == nil {
			l.teardown = func() { stop(); clean() }
			err = commands(ctx,
				"ip -n "+a+" addr add 10.213.77.1 peer 10.213.77.2 dev tun0", "ip -n "+b+" addr add 10.213.77.2 peer 10.213.77.1 dev tun0",
				"ip -n "+a+" link set tun0 up txqueuelen 100000", "ip -n "+b+" link set tun0 up txqueuelen 100000")
		}
	}
	if err != nil {
		l.teardown()
		return nil, err
	}
	return l, nil
}

func netem(ctx context.Context, a, b string) error {
	err := commands(ctx, "ip link add va netns "+a+" type veth peer name vb netns "+b,
		"ip netns exec "+a+" tc qdisc add dev va root netem delay 10ms limit 100000",
		"ip netns exec "+b+" tc qdisc add dev vb root netem delay 10ms limit 100000",
		"ip -n "+a+" addr add 10.213.77.1/24 dev va", "ip -n "+b+" addr add 10.213.77.2/24 dev vb",
		"ip -n "+a+" link set va up", "ip -n "+b+" link set vb up")
	if err != nil {
		_ = commands(ctx, "ip -n "+a+" link del va")
	}
	return err
}

func commands(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		args := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// certify writes a certificate for the sender's address that signs itself.
func certify(host, cert, key string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "casbench"}, IPAddresses: []net.IP{net.ParseIP(host)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}
