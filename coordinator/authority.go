package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/ca"
	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

const (
	// identityDir, in the data directory, has the coordinator's own certificate.
	identityDir = "tls"
	// authorityFile has an authority that is not yet in the replicated state: the
	// first coordinator of a cluster needs certificates before there is a state.
	authorityFile = "authority.pb"
	// certificateLife is that of coordinators' and runners' certificates.
	certificateLife = 24 * time.Hour
	// renewGrace is how long after its end a certificate is good for its renewal
	// and nothing else, so that a host which was off for a weekend needs no token.
	renewGrace = 7 * 24 * time.Hour
)

// found makes the authority of a new cluster and this coordinator's certificate,
// before there is a replicated state that could hold them.
func found(dir, name string, hosts []string, me *pki.Identity) error {
	path := filepath.Join(dir, authorityFile)
	raw, err := os.ReadFile(path)
	var first raftlogv1.InitAuthority
	switch {
	case errors.Is(err, os.ErrNotExist):
		if me.Ready() {
			return nil // the state has it
		}
		first.ClusterId = ids.New(ids.Cluster, 0, time.Now()).String()
		authority, err := ca.New(first.GetClusterId(), time.Now())
		if err != nil {
			return fmt.Errorf("make the cluster's authority: %w", err)
		}
		first.Key = &raftlogv1.AuthorityKey{Certificate: authority.Certificate, Key: authority.Key}
		if raw, err = proto.Marshal(&first); err != nil {
			return err
		}
		if err := pki.WriteSecret(path, raw); err != nil {
			return fmt.Errorf("keep the cluster's authority: %w", err)
		}
	case err != nil:
		return fmt.Errorf("read the cluster's authority: %w", err)
	default:
		if err := proto.Unmarshal(raw, &first); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	authority, err := ca.Load(first.GetKey().GetCertificate(), first.GetKey().GetKey())
	if err != nil {
		return err
	}
	request, err := me.Request(name)
	if err != nil {
		return err
	}
	cert, err := authority.Sign(request, pki.Peer{Cluster: first.GetClusterId(), Role: pki.RoleCoordinator, Name: name}, hosts, time.Now(), certificateLife)
	if err != nil {
		return err
	}
	return me.Install(cert, authority.PEM())
}

// founded gives what found has made and the state has not taken yet, else nil.
func founded(dir string) (*raftlogv1.InitAuthority, error) {
	raw, err := os.ReadFile(filepath.Join(dir, authorityFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first := &raftlogv1.InitAuthority{}
	return first, proto.Unmarshal(raw, first)
}

// initAuthority sees to it that the state has an authority and this coordinator,
// which leads, a certificate of it.
func (c *Coordinator) initAuthority(ctx context.Context) error {
	dir := filepath.Join(c.cfg.DataDir, identityDir)
	if c.state.Read().Authority() == nil {
		first, err := founded(dir)
		if err != nil {
			return fmt.Errorf("read the cluster's authority: %w", err)
		}
		if first == nil {
			authority, err := ca.New(c.ClusterID(), time.Now())
			if err != nil {
				return fmt.Errorf("make the cluster's authority: %w", err)
			}
			first = &raftlogv1.InitAuthority{Key: &raftlogv1.AuthorityKey{Certificate: authority.Certificate, Key: authority.Key}}
		}
		if _, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_InitAuthority{InitAuthority: first}}); err != nil {
			return fmt.Errorf("store the cluster's authority: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, authorityFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return c.renewOwn(ctx)
}

// renewOwn gives this coordinator, which leads, a certificate where it has none,
// an old one, or one that does not know of the present authorities.
func (c *Coordinator) renewOwn(ctx context.Context) error {
	if !c.renewalDue(time.Now()) {
		return nil
	}
	request, err := c.identity.Request(c.name())
	if err != nil {
		return err
	}
	cert, bundle, err := c.issue(ctx, pki.Peer{Role: pki.RoleCoordinator, Name: c.name()}, request, c.cfg.hosts(), &raftlogv1.IssueCertificate{Own: true})
	if err != nil {
		return fmt.Errorf("certificate of this coordinator: %w", err)
	}
	return c.identity.Install(cert, bundle)
}

// renewalDue reports whether this coordinator's certificate is old, trusts other
// authorities than the state has, or is not recorded in it.
func (c *Coordinator) renewalDue(now time.Time) bool {
	if !c.identity.Ready() || !now.Before(c.identity.RenewAt()) || !c.identity.Covers(c.cfg.hosts()) {
		return true
	}
	view := c.state.Read()
	authority := view.Authority()
	if authority == nil {
		return false
	}
	return !bytes.Equal(bundleOf(authority), c.identity.Authorities()) ||
		view.Holder(pki.RoleCoordinator, c.name()).GetGeneration() < authority.GetGeneration()
}

// bundleOf is what members trust, in PEM; the one that signs comes first.
func bundleOf(a *raftlogv1.Authority) (out []byte) {
	for _, key := range a.GetKeys() {
		out = append(out, ca.EncodeCertificate(key.GetCertificate())...)
	}
	return out
}

// signer is the authority that signs.
func signer(a *raftlogv1.Authority) (*ca.Authority, error) {
	if len(a.GetKeys()) == 0 {
		return nil, problem.New(connect.CodeUnavailable, problem.NotLeader, "repeat the call", "the cluster has no authority yet").Retry()
	}
	return ca.Load(a.GetKeys()[0].GetCertificate(), a.GetKeys()[0].GetKey())
}

// issue signs a certificate for peer and gives it away once the state has taken
// it: what op says of why decides that. An authority that changes in between is
// no error of the caller's.
func (c *Coordinator) issue(ctx context.Context, peer pki.Peer, request []byte, hosts []string, why *raftlogv1.IssueCertificate) (cert, bundle []byte, err error) {
	key, err := ca.KeyHash(request)
	if err != nil {
		return nil, nil, problem.Invalid("request", "send a PKCS #10 request in DER for an ECDSA key on P-256", "%v", err)
	}
	peer.Cluster = c.ClusterID()
	for {
		authority := c.state.Read().Authority()
		cert, err := c.issueBy(ctx, authority, peer, request, hosts, key, why)
		var refusal *problem.Error
		if errors.As(err, &refusal) && refusal.Reason == problem.AuthorityChanged && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if cross := authority.GetKeys()[0].GetCross(); len(cross) > 0 {
			cert = append(cert, ca.EncodeCertificate(cross)...)
		}
		return cert, bundleOf(authority), nil
	}
}

func (c *Coordinator) issueBy(ctx context.Context, authority *raftlogv1.Authority, peer pki.Peer, request []byte, hosts []string, key []byte, why *raftlogv1.IssueCertificate) ([]byte, error) {
	by, err := signer(authority)
	if err != nil {
		return nil, err
	}
	cert, err := by.Sign(request, peer, hosts, time.Now(), certificateLife)
	if err != nil {
		return nil, problem.Invalid("request", "send a PKCS #10 request in DER for an ECDSA key on P-256", "%v", err)
	}
	parsed, err := pki.ParseCertificates(cert)
	if err != nil {
		return nil, err
	}
	made, err := pki.PeerOfCertificate(parsed[0])
	if err != nil {
		return nil, err
	}
	op := proto.CloneOf(why)
	op.Holder = &raftlogv1.CertificateHolder{Role: peer.Role, Name: peer.Name, Serial: made.Serial, Issued: timestamppb.New(made.Issued),
		Expires: timestamppb.New(made.Expires), Generation: authority.GetGeneration(), Key: key}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_IssueCertificate{IssueCertificate: op}})
	return cert, err
}

// nextStep takes a rotation one step on, where all members have followed or none
// is waited for.
func (c *Coordinator) nextStep(ctx context.Context, force bool) error {
	view := c.state.Read()
	authority := view.Authority()
	if authority.GetPhase() == state.AuthoritySteady || (!force && behind(view, time.Now()) > 0) {
		return nil
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_AdvanceAuthority{
		AdvanceAuthority: &raftlogv1.AdvanceAuthority{FromGeneration: authority.GetGeneration()}}})
	return err
}

// behind counts the members that could still use their certificate and do not
// know of the authority's last change.
func behind(view state.Reader, now time.Time) (n int) {
	for _, h := range view.Holders() {
		good := now.Before(h.GetExpires().AsTime()) && !state.Denied(h, h.GetIssued())
		if good && h.GetGeneration() < view.Authority().GetGeneration() {
			n++
		}
	}
	return n
}
