package cas

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// childRoles are what the test binary does when a test starts it again as a
// process of its own.
var childRoles = map[string]func() error{
	"committer": childCommitter,
	"zoo":       childZoo,
	"collector": childCollector,
}

func TestMain(m *testing.M) {
	role := os.Getenv("SKERRY_CAS_CHILD")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := childRoles[role](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// testContext is for child processes, which have no testing.T.
func testContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
