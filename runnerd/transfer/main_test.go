package transfer

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustDigest(t *testing.T, text string) cas.Digest {
	t.Helper()
	d, err := cas.ParseDigest(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func leased(id string) peer.PullOptions {
	return peer.PullOptions{Lease: incoming(id), Collections: leaseLife}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
