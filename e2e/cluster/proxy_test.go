package cluster

import (
	"testing"
)

type holder struct{ Role, Name, Serial, Generation string }

// A runner whose only way out is an HTTP proxy does all that others do: it joins,
// works, copies both ways by a relay, and renews its certificate.
func TestRunnerBehindAProxy(t *testing.T) {
	t.Parallel()
	b := up(t, "--runners", "1")
	proxy := b.add("proxy")
	behind := b.add("runner", "--via", proxy)
	agent := b.newAgent("alice")
	b.sh(agent, "r1", "mkdir d; head -c 3000000 /dev/urandom > d/big; echo small > d/small")
	sum := b.sh(agent, "r1", "sha256sum d/*").Stdout.Text
	b.sh(agent, behind, "echo here > here")
	if end := b.copy(agent, "r1", behind, "d"); end.State != "completed" || end.Route != "relay" {
		t.Errorf("to the runner behind the proxy: %+v", end)
	}
	if got := b.sh(agent, behind, "sha256sum d/*; echo more > d/more").Stdout.Text; got != sum {
		t.Errorf("copied %q, want %q", got, sum)
	}
	b.sh(agent, "r1", "mv d old")
	if end := b.copy(agent, behind, "r1", "d"); end.State != "completed" || end.Route != "relay" {
		t.Errorf("from the runner behind the proxy: %+v", end)
	}
	if got := b.sh(agent, "r1", "sha256sum d/big d/small; cat d/more").Stdout.Text; got != sum+"more\n" {
		t.Errorf("copied back %q, want %q", got, sum)
	}

	before := b.holder(behind)
	b.until("rotation", func() bool {
		var out struct{ Authority struct{ Phase string } }
		b.admin("JoinService/GetAuthority", map[string]any{}, &out)
		if now := b.holder(behind); now.Serial != before.Serial && out.Authority.Phase == "steady" {
			return true
		}
		if out.Authority.Phase == "steady" {
			b.admin("JoinService/RotateAuthority", map[string]any{}, nil)
		}
		return false
	})
	b.run("kill", proxy)
	b.awaitRunner(behind, "down") // it had no other way
	b.run("start", proxy)
	b.awaitRunner(behind, "up")
	b.sh(agent, behind, "cat here")
}

func (b *testbed) holder(name string) holder {
	b.t.Helper()
	var out struct{ Authority struct{ Holders []holder } }
	b.admin("JoinService/GetAuthority", map[string]any{}, &out)
	for _, h := range out.Authority.Holders {
		if h.Name == name {
			return h
		}
	}
	b.t.Fatalf("%s has no certificate: %+v", name, out)
	return holder{}
}

// copy transfers a path between the agent's workspaces on two runners.
func (b *testbed) copy(token, from, to, path string) transfer {
	b.t.Helper()
	var out struct{ Transfer transfer }
	b.as(token, "TransferService/StartTransfer", map[string]any{"source": b.workspaceOn(token, from).ID, "target": b.workspaceOn(token, to).ID,
		"mappings": []map[string]any{{"source": path, "target": path}}, "idempotencyKey": from + to}, &out)
	id := out.Transfer.ID
	b.until("end of the transfer", func() bool {
		b.as(token, "TransferService/GetTransfer", map[string]any{"transferId": id, "waitMs": 2000, "fileLimit": 1}, &out)
		return out.Transfer.ended()
	})
	return out.Transfer
}
