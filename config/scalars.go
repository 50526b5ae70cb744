package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration written as text such as "10s" or "1h30m".
type Duration time.Duration

// D gives the standard type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String implements fmt.Stringer.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; it refuses negative values.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration such as 10s or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// Bytes is a size written as text such as "64MiB"; units are powers of 1024
// with an i (KiB, MiB, GiB, TiB), of 1000 without (kB, MB, GB, TB), or none.
type Bytes uint64

var units = []struct {
	suffix string
	size   uint64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// String gives the largest binary unit that divides b.
func (b Bytes) String() string {
	for _, u := range units[:4] {
		if b != 0 && uint64(b)%u.size == 0 {
			return strconv.FormatUint(uint64(b)/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatUint(uint64(b), 10) + "B"
}

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) error {
	number, size := strings.TrimSpace(string(text)), uint64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > math.MaxInt64/size {
		return fmt.Errorf("%q is not a size such as 512KiB, 64MiB or 1GB", text)
	}
	*b = Bytes(n * size)
	return nil
}
