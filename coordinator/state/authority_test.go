package state

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// machine applies commands at times that the test sets.
type machine struct {
	t     *testing.T
	state *State
	index uint64
	now   time.Time
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, state: New(), now: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
}

func (m *machine) at() *timestamppb.Timestamp { return timestamppb.New(m.now) }

func (m *machine) apply(cmd *raftlogv1.Command) *raftlogv1.Answer {
	m.t.Helper()
	m.index++
	cmd.Id, cmd.Time = "cm_"+time.Duration(m.index).String(), m.at()
	return m.state.Apply([]Entry{{Index: m.index, Command: cmd}})[0]
}

func (m *machine) want(reason string, answer *raftlogv1.Answer) {
	m.t.Helper()
	if got := answer.GetFailure().GetReason(); got != reason {
		m.t.Fatalf("refused with %q (%s), want %q", got, answer.GetFailure().GetMessage(), reason)
	}
}

func (m *machine) initAuthority() {
	m.want("", m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_InitAuthority{InitAuthority: &raftlogv1.InitAuthority{
		Key: &raftlogv1.AuthorityKey{Certificate: []byte("old"), Key: []byte("k")}}}}))
}

func (m *machine) joinToken(id, role, name string, life time.Duration) {
	m.t.Helper()
	m.want("", m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_CreateJoinToken{CreateJoinToken: &raftlogv1.CreateJoinToken{
		Token: &raftlogv1.JoinToken{Id: id, Hash: []byte("h"), Role: role, Name: name, Expires: timestamppb.New(m.now.Add(life))}}}}))
}

func (m *machine) issue(token, role, name, key string) *raftlogv1.Answer {
	return m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_IssueCertificate{IssueCertificate: &raftlogv1.IssueCertificate{JoinTokenId: token,
		Holder: &raftlogv1.CertificateHolder{Role: role, Name: name, Key: []byte(key), Serial: "1", Issued: m.at(),
			Expires: timestamppb.New(m.now.Add(24 * time.Hour)), Generation: m.state.Read().Authority().GetGeneration()}}}})
}

func (m *machine) deny(role, name string) *raftlogv1.Answer {
	return m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_DenyMember{DenyMember: &raftlogv1.DenyMember{Role: role, Name: name}}})
}

func (m *machine) advance(from uint64, key string) *raftlogv1.Authority {
	m.t.Helper()
	answer := m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_AdvanceAuthority{AdvanceAuthority: &raftlogv1.AdvanceAuthority{
		FromGeneration: from, Key: &raftlogv1.AuthorityKey{Certificate: []byte(key), Key: []byte(key)}}}})
	m.want("", answer)
	return answer.GetAuthority()
}

func TestF49JoinTokenIsGoodOnce(t *testing.T) {
	m := newMachine(t)
	m.initAuthority()
	m.joinToken("a", "runner", "", time.Hour)
	m.want("", m.issue("a", "runner", "r1", "k1"))
	m.want("", m.issue("a", "runner", "r1", "k1")) // its answer was lost
	m.want(problem.Unauthenticated, m.issue("a", "runner", "r1", "k2"))
	m.want(problem.Unauthenticated, m.issue("a", "runner", "r2", "k1"))

	m.joinToken("b", "runner", "", time.Hour)
	m.now = m.now.Add(time.Hour)
	m.want(problem.Unauthenticated, m.issue("b", "runner", "r3", "k3"))

	m.joinToken("c", "runner", "", time.Hour)
	m.want("", m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_RevokeJoinToken{RevokeJoinToken: &raftlogv1.RevokeJoinToken{Id: "c"}}}))
	m.want(problem.Unauthenticated, m.issue("c", "runner", "r3", "k3"))
	if m.state.Read().JoinToken("b") != nil {
		t.Error("an expired join token is kept")
	}
}

func TestJoinTokenIsForOneRoleAndName(t *testing.T) {
	m := newMachine(t)
	m.initAuthority()
	m.joinToken("a", "runner", "r1", time.Hour)
	m.want(problem.PermissionDenied, m.issue("a", "coordinator", "r1", "k"))
	m.want(problem.PermissionDenied, m.issue("a", "runner", "r2", "k"))
	m.want("", m.issue("a", "runner", "r1", "k"))
	// Nobody takes a name over with a token that was not made for it.
	m.joinToken("b", "runner", "", time.Hour)
	m.want(problem.AlreadyExists, m.issue("b", "runner", "r1", "other"))
	m.joinToken("c", "runner", "r1", time.Hour)
	m.want("", m.issue("c", "runner", "r1", "other"))
	m.want(problem.PermissionDenied, m.issue("", "runner", "r1", "k")) // the key before does not renew
	m.want("", m.issue("", "runner", "r1", "other"))
	m.want(problem.NotFound, m.issue("", "runner", "r9", "k"))
}

func TestDeniedMemberCannotRenew(t *testing.T) {
	m := newMachine(t)
	m.initAuthority()
	m.joinToken("a", "runner", "r1", time.Hour)
	m.want("", m.issue("a", "runner", "r1", "k"))
	m.want("", m.deny("runner", "r1"))
	if h := m.state.Read().Holder("runner", "r1"); !Denied(h, h.GetIssued()) {
		t.Error("its certificate is good")
	}
	m.want(problem.PermissionDenied, m.issue("", "runner", "r1", "k"))
	m.now = m.now.Add(time.Second)
	// A join token is good for a repetition, but not beyond a denial.
	m.want(problem.Unauthenticated, m.issue("a", "runner", "r1", "k"))
	m.joinToken("b", "runner", "", time.Hour)
	m.want("", m.issue("b", "runner", "r1", "k"))
	if h := m.state.Read().Holder("runner", "r1"); Denied(h, h.GetIssued()) {
		t.Error("a certificate from after the denial is not good")
	}
	m.want(problem.NotFound, m.deny("runner", "nobody"))
}

func TestAuthorityIsRotatedInSteps(t *testing.T) {
	m := newMachine(t)
	m.initAuthority()
	m.joinToken("a", "runner", "r1", time.Hour)
	m.want("", m.issue("a", "runner", "r1", "k"))
	keys := func() (out []string) {
		for _, k := range m.state.Read().Authority().GetKeys() {
			out = append(out, string(k.GetCertificate())+"/"+string(k.GetKey()))
		}
		return out
	}
	for _, step := range []struct {
		phase string
		keys  []string
	}{{AuthorityTrusting, []string{"old/k", "new/new"}}, {AuthorityMoving, []string{"new/new", "old/"}}, {AuthoritySteady, []string{"new/new"}}} {
		before := m.state.Read().Authority().GetGeneration()
		if a := m.advance(before, "new"); a.GetPhase() != step.phase || len(a.GetKeys()) != 0 {
			t.Fatalf("answer %v, want phase %s and no keys", a, step.phase)
		}
		if m.advance(before, "other").GetGeneration() != before+1 {
			t.Fatal("one step was taken twice")
		}
		if got := keys(); len(got) != len(step.keys) || got[0] != step.keys[0] || got[len(got)-1] != step.keys[len(got)-1] {
			t.Fatalf("phase %s has keys %v, want %v", step.phase, got, step.keys)
		}
	}
	late := m.apply(&raftlogv1.Command{Op: &raftlogv1.Command_IssueCertificate{IssueCertificate: &raftlogv1.IssueCertificate{
		Holder: &raftlogv1.CertificateHolder{Role: "runner", Name: "r1", Key: []byte("k"), Generation: 1}}}})
	m.want(problem.AuthorityChanged, late) // it was signed by the one that is gone
}

func TestJoinTokensOfTheOldAuthorityEndWithIt(t *testing.T) {
	m := newMachine(t)
	m.initAuthority()
	m.joinToken("before", "runner", "", time.Hour)
	m.now = m.now.Add(time.Second)
	for generation, key := range []string{"new", ""} {
		m.advance(uint64(generation)+1, key)
	}
	m.now = m.now.Add(time.Second)
	m.joinToken("after", "runner", "", time.Hour)
	m.advance(3, "")
	m.want(problem.Unauthenticated, m.issue("before", "runner", "r1", "k1"))
	m.want("", m.issue("after", "runner", "r2", "k2"))
}
