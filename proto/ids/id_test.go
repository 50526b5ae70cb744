package ids

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runner := rapid.Uint32Range(0, MaxRunner).Draw(t, "runner")
		now := time.UnixMilli(rapid.Int64Range(0, 1<<48-1).Draw(t, "ms"))
		id := New(Execution, runner, now)
		got, err := Parse(Execution, id.String())
		if err != nil || got != id {
			t.Fatalf("Parse(%s) = %v, %v", id, got, err)
		}
		if got.Runner() != runner || !got.Time().Equal(now) {
			t.Fatalf("runner %d time %v, want %d %v", got.Runner(), got.Time(), runner, now)
		}
	})
}

func TestIDsSortByTime(t *testing.T) {
	now := time.Now()
	a, b := New(Execution, MaxRunner, now), New(Execution, 0, now.Add(time.Millisecond))
	if a.String() >= b.String() {
		t.Fatalf("%s is not before %s", a, b)
	}
}

func TestParseRefuses(t *testing.T) {
	good := New(Execution, 1, time.Now()).String()
	for _, s := range []string{
		"", "ex_", "ws_" + good[3:], good + "0", good[:len(good)-1], "ex_" + "U" + good[4:],
		"EX_" + good[3:], good[:10] + "\x00" + good[11:], good[:28] + "z",
	} {
		if id, err := Parse(Execution, s); !errors.Is(err, ErrInvalid) {
			t.Errorf("Parse(%q) = %v, %v; want ErrInvalid", s, id, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(New(Execution, 3, time.Now()).String())
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := Parse(Execution, s); err == nil && id.String() != s {
			t.Fatalf("%q parsed as %s", s, id)
		}
	})
}
