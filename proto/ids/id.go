// Package ids has the typed ids of the API: a prefix, an underscore and 26
// characters that sort by time. An id of something that lives on one runner
// carries that runner's number, so that a call can be routed without a lookup.
package ids

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is the prefix of an id.
type Kind string

// Kinds of the API.
const (
	Execution Kind = "ex"
	Workspace Kind = "ws"
	Token     Kind = "tk"
	Cluster   Kind = "cl"
	Command   Kind = "cm"
	JoinToken Kind = "jt"
	Timer     Kind = "tm"
	Drain     Kind = "dr"
	Transfer  Kind = "tr"
	Branch    Kind = "br"
)

// MaxRunner is the largest runner number that an id can carry (24 bits).
const MaxRunner = 1<<24 - 1

// ErrInvalid is wrapped by every error of Parse.
var ErrInvalid = errors.New("invalid id")

// Crockford's alphabet in lower case: no i, l, o, u.
var encoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

const encodedLen = 26

// ID is comparable and usable as a map key. Its 128 bits are: 48 of Unix
// milliseconds, 24 of runner number (0: none), 56 random.
type ID struct {
	kind Kind
	raw  [16]byte
}

// New makes an id. It panics when runner is over MaxRunner.
func New(kind Kind, runner uint32, now time.Time) ID {
	if runner > MaxRunner {
		panic(fmt.Sprintf("ids: runner number %d is over %d", runner, MaxRunner))
	}
	id := ID{kind: kind}
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], uint64(now.UnixMilli())<<16)
	copy(id.raw[:6], head[:6])
	id.raw[6], id.raw[7], id.raw[8] = byte(runner>>16), byte(runner>>8), byte(runner)
	// crypto/rand.Read never fails on Linux; it crashes the program instead.
	_, _ = rand.Read(id.raw[9:])
	return id
}

// Parse reads an id of one kind.
func Parse(kind Kind, s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, string(kind)+"_")
	if !ok || len(rest) != encodedLen {
		return ID{}, fmt.Errorf("%w %q: want %s_ and %d characters", ErrInvalid, clip(s), kind, encodedLen)
	}
	id := ID{kind: kind}
	n, err := encoding.Decode(id.raw[:], []byte(rest))
	if err != nil || n != len(id.raw) || id.String() != s {
		return ID{}, fmt.Errorf("%w %q: characters after %s_ are not valid", ErrInvalid, clip(s), kind)
	}
	return id, nil
}

// String gives the text form.
func (id ID) String() string {
	if id.kind == "" {
		return ""
	}
	return string(id.kind) + "_" + encoding.EncodeToString(id.raw[:])
}

// Runner is the number of the runner that the object lives on; 0: none.
func (id ID) Runner() uint32 {
	return uint32(id.raw[6])<<16 | uint32(id.raw[7])<<8 | uint32(id.raw[8])
}

// Time is when the id was made, to the millisecond.
func (id ID) Time() time.Time {
	var head [8]byte
	copy(head[2:], id.raw[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(head[:])))
}

func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
