package state

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Phases of the cluster's authority.
const (
	// AuthoritySteady: one is trusted and signs.
	AuthoritySteady = "steady"
	// AuthorityTrusting: members learn to trust the next one.
	AuthorityTrusting = "trusting"
	// AuthorityMoving: the next one signs, the old one is still trusted.
	AuthorityMoving = "moving"
)

const (
	tableAuthority  = "authority"
	tableHolders    = "certificate_holders"
	tableJoinTokens = "join_tokens"

	// Holders and join tokens that the state keeps at most.
	maxHolders    = 100_000
	maxJoinTokens = 10_000
)

func authoritySchema() []*memdb.TableSchema {
	holder := byText(indexID, true, 2, func(h *raftlogv1.CertificateHolder) []string { return []string{h.GetRole(), h.GetName()} })
	return []*memdb.TableSchema{
		table(tableAuthority, byID(func(*raftlogv1.Authority) string { return metaKey })),
		table(tableHolders, holder),
		table(tableJoinTokens, byID((*raftlogv1.JoinToken).GetId)),
	}
}

// Authority gives the cluster's certificate authority, nil before it has one.
func (r Reader) Authority() *raftlogv1.Authority {
	v, _ := first[raftlogv1.Authority](r.txn, tableAuthority, indexID, metaKey)
	return v
}

// Holder finds a member's latest certificate.
func (r Reader) Holder(role, name string) *raftlogv1.CertificateHolder {
	v, _ := first[raftlogv1.CertificateHolder](r.txn, tableHolders, indexID, role, name)
	return v
}

// Holders lists all members with certificates, by role and name.
func (r Reader) Holders() []*raftlogv1.CertificateHolder {
	return all[raftlogv1.CertificateHolder](r.txn, tableHolders, indexID)
}

// JoinToken finds a join token by id.
func (r Reader) JoinToken(id string) *raftlogv1.JoinToken {
	v, _ := first[raftlogv1.JoinToken](r.txn, tableJoinTokens, indexID, id)
	return v
}

// JoinTokens lists all join tokens, oldest first.
func (r Reader) JoinTokens() []*raftlogv1.JoinToken {
	return all[raftlogv1.JoinToken](r.txn, tableJoinTokens, indexID)
}

func answerAuthority(a *raftlogv1.Authority) *raftlogv1.Answer {
	// Answers are kept for repeats and go into snapshots: no keys in them.
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Authority{Authority: &raftlogv1.Authority{
		Generation: a.GetGeneration(), Phase: a.GetPhase(), Changed: a.GetChanged()}}}
}

// initAuthority takes the first one; later attempts get that.
func (p processor) initAuthority(cmd *raftlogv1.Command, op *raftlogv1.InitAuthority) *raftlogv1.Answer {
	if a := p.Authority(); a != nil {
		return answerAuthority(a)
	}
	if len(op.GetKey().GetCertificate()) == 0 || len(op.GetKey().GetKey()) == 0 {
		return refuse(problem.InvalidArgument, "key", "authority is empty")
	}
	a := &raftlogv1.Authority{Generation: 1, Phase: AuthoritySteady, Keys: []*raftlogv1.AuthorityKey{op.GetKey()}, Changed: cmd.GetTime()}
	p.put(tableAuthority, a)
	return answerAuthority(a)
}

// advanceAuthority takes one step of a rotation; one that was taken already, by
// whoever, is no error.
func (p processor) advanceAuthority(cmd *raftlogv1.Command, op *raftlogv1.AdvanceAuthority) *raftlogv1.Answer {
	old := p.Authority()
	if old == nil {
		return refuse(problem.NotFound, "", "the cluster has no authority")
	}
	if old.GetGeneration() != op.GetFromGeneration() {
		return answerAuthority(old)
	}
	a := proto.CloneOf(old)
	a.Generation, a.Changed = a.GetGeneration()+1, cmd.GetTime()
	switch a.GetPhase() {
	case AuthoritySteady:
		if len(op.GetKey().GetCertificate()) == 0 || len(op.GetKey().GetKey()) == 0 {
			return refuse(problem.InvalidArgument, "key", "the new authority is empty")
		}
		a.Phase, a.Keys = AuthorityTrusting, append(a.GetKeys(), op.GetKey())
	case AuthorityTrusting:
		a.Phase, a.Keys = AuthorityMoving, []*raftlogv1.AuthorityKey{a.GetKeys()[1], {Certificate: a.GetKeys()[0].GetCertificate()}}
	case AuthorityMoving:
		a.Phase, a.Keys = AuthoritySteady, a.GetKeys()[:1]
		p.revokeJoinTokens(old.GetChanged(), cmd.GetTime())
	}
	p.put(tableAuthority, a)
	return answerAuthority(a)
}

// revokeJoinTokens revokes those that name the old authority. What a token says
// of it binds whoever joins, not a thief, who would get a certificate all the same.
func (p processor) revokeJoinTokens(before, now *timestamppb.Timestamp) {
	for _, t := range p.JoinTokens() {
		if t.GetRevoked() == nil && !t.GetCreated().AsTime().After(before.AsTime()) {
			t = proto.CloneOf(t)
			t.Revoked = now
			p.put(tableJoinTokens, t)
		}
	}
}

func (p processor) createJoinToken(cmd *raftlogv1.Command, token *raftlogv1.JoinToken) *raftlogv1.Answer {
	switch {
	case token.GetId() == "" || len(token.GetHash()) == 0 || token.GetExpires() == nil:
		return refuse(problem.InvalidArgument, "token", "id, hash or expiry is empty")
	case p.JoinToken(token.GetId()) != nil:
		return refuse(problem.AlreadyExists, "id", "join token %q exists", token.GetId())
	}
	p.forgetJoinTokens(cmd.GetTime())
	if n := len(p.JoinTokens()); n >= maxJoinTokens {
		return refuse(problem.LimitExceeded, "", "there are %d join tokens; revoke some, or let them expire", n)
	}
	token = proto.CloneOf(token)
	token.Created, token.Revoked, token.Used, token.UsedBy, token.UsedKey = cmd.GetTime(), nil, nil, "", nil
	p.put(tableJoinTokens, token)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_JoinToken{JoinToken: token}}
}

// forgetJoinTokens drops those that nobody can use any more.
func (p processor) forgetJoinTokens(now *timestamppb.Timestamp) {
	for _, t := range p.JoinTokens() {
		if !now.AsTime().Before(t.GetExpires().AsTime()) {
			if err := p.txn.Delete(tableJoinTokens, t); err != nil {
				panic(fmt.Sprintf("state: delete join token: %v", err))
			}
		}
	}
}

func (p processor) revokeJoinToken(cmd *raftlogv1.Command, op *raftlogv1.RevokeJoinToken) *raftlogv1.Answer {
	token := p.JoinToken(op.GetId())
	if token == nil {
		return refuse(problem.NotFound, "tokenId", "no join token %q", op.GetId())
	}
	if token.GetRevoked() == nil {
		token = proto.CloneOf(token)
		token.Revoked = cmd.GetTime()
		p.put(tableJoinTokens, token)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_JoinToken{JoinToken: token}}
}

// issueCertificate records who has which certificate. What it refuses was signed
// for nothing: the leader gives a certificate away only after this.
func (p processor) issueCertificate(cmd *raftlogv1.Command, op *raftlogv1.IssueCertificate) *raftlogv1.Answer {
	holder := op.GetHolder()
	if holder.GetRole() == "" || holder.GetName() == "" || len(holder.GetKey()) == 0 {
		return refuse(problem.InvalidArgument, "holder", "role, name or key is empty")
	}
	if a := p.Authority(); holder.GetGeneration() != a.GetGeneration() {
		return refuse(problem.AuthorityChanged, "", "the authority has changed meanwhile")
	}
	known := p.Holder(holder.GetRole(), holder.GetName())
	var refusal *raftlogv1.Answer
	switch {
	case op.GetJoinTokenId() != "":
		refusal = p.useJoinToken(cmd, op, known)
	case !op.GetOwn():
		refusal = p.mayRenew(known, holder)
	}
	if refusal != nil {
		return refusal
	}
	if known == nil && len(p.Holders()) >= maxHolders {
		return refuse(problem.LimitExceeded, "", "the cluster has %d members with certificates", maxHolders)
	}
	holder = proto.CloneOf(holder)
	holder.Denied = known.GetDenied()
	p.put(tableHolders, holder)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Holder{Holder: holder}}
}

// mayRenew: the same key, which was not denied.
func (p processor) mayRenew(known, next *raftlogv1.CertificateHolder) *raftlogv1.Answer {
	switch {
	case known == nil:
		return refuse(problem.NotFound, "", "no %s %q has a certificate", next.GetRole(), next.GetName())
	case !bytes.Equal(known.GetKey(), next.GetKey()):
		return refuse(problem.PermissionDenied, "request", "it is for another key than the present certificate")
	case Denied(known, known.GetIssued()):
		return refuse(problem.PermissionDenied, "", "the certificates of %s %q were denied", next.GetRole(), next.GetName())
	}
	return nil
}

// Denied reports whether a holder's certificate that was issued at a time is worthless.
func Denied(holder *raftlogv1.CertificateHolder, issued *timestamppb.Timestamp) bool {
	return holder.GetDenied() != nil && !issued.AsTime().After(holder.GetDenied().AsTime())
}

func (p processor) useJoinToken(cmd *raftlogv1.Command, op *raftlogv1.IssueCertificate, known *raftlogv1.CertificateHolder) *raftlogv1.Answer {
	holder, now := op.GetHolder(), cmd.GetTime()
	token := p.JoinToken(op.GetJoinTokenId())
	again := bytes.Equal(token.GetUsedKey(), holder.GetKey()) && token.GetUsedBy() == holder.GetName()
	switch {
	case token == nil || token.GetRevoked() != nil || !now.AsTime().Before(token.GetExpires().AsTime()):
		return refuse(problem.Unauthenticated, "token", "it is unknown, revoked or expired")
	case token.GetRole() != holder.GetRole():
		return refuse(problem.PermissionDenied, "token", "it is for a %s", token.GetRole())
	case token.GetName() != "" && token.GetName() != holder.GetName():
		return refuse(problem.PermissionDenied, "name", "the token is for %q", token.GetName())
	case token.GetUsed() != nil && !again:
		return refuse(problem.Unauthenticated, "token", "it was used already, by %q", token.GetUsedBy())
	case token.GetUsed() != nil && Denied(known, token.GetUsed()):
		// Its repetition would give back what the denial took.
		return refuse(problem.Unauthenticated, "token", "the certificates of %s %q were denied after it was used", holder.GetRole(), holder.GetName())
	case token.GetName() == "" && p.taken(known, holder, now):
		return refuse(problem.AlreadyExists, "name", "there is a %s %q; remove it first, or use a token made for that name", holder.GetRole(), holder.GetName())
	}
	if token.GetUsed() == nil {
		token = proto.CloneOf(token)
		token.Used, token.UsedBy, token.UsedKey = now, holder.GetName(), holder.GetKey()
		p.put(tableJoinTokens, token)
	}
	return nil
}

// taken: another key has a certificate in this name that is good.
func (p processor) taken(known, next *raftlogv1.CertificateHolder, now *timestamppb.Timestamp) bool {
	return known != nil && !bytes.Equal(known.GetKey(), next.GetKey()) && !Denied(known, known.GetIssued()) &&
		now.AsTime().Before(known.GetExpires().AsTime())
}

// denyMember makes all certificates so far worthless. A member that is not known
// gets a record too, so that one that is on its way is worthless as well.
func (p processor) denyMember(cmd *raftlogv1.Command, op *raftlogv1.DenyMember) *raftlogv1.Answer {
	known := p.Holder(op.GetRole(), op.GetName())
	if known == nil {
		return refuse(problem.NotFound, "name", "no %s %q has a certificate", op.GetRole(), op.GetName())
	}
	holder := proto.CloneOf(known)
	// A certificate may have been issued by a leader whose clock was ahead.
	holder.Denied = cmd.GetTime()
	if known.GetIssued().AsTime().After(holder.GetDenied().AsTime()) {
		holder.Denied = known.GetIssued()
	}
	p.put(tableHolders, holder)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Holder{Holder: holder}}
}

// writeAuthority adds its records to a snapshot.
func (s *Snapshot) writeAuthority(out *recordWriter) {
	each(s.txn, tableAuthority, indexID, func(v *raftlogv1.Authority) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Authority{Authority: v}})
	})
	each(s.txn, tableHolders, indexID, func(v *raftlogv1.CertificateHolder) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Holder{Holder: v}})
	})
	each(s.txn, tableJoinTokens, indexID, func(v *raftlogv1.JoinToken) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_JoinToken{JoinToken: v}})
	})
}
