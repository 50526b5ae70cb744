package execution

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// database/sql keeps one opener for each database until it is closed, in a
	// goroutine that ends a moment later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("database/sql.(*DB).connectionOpener"))
}
