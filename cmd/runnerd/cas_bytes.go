package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseBytes reads a number of bytes with a unit or none: 4096, 10MiB, 2GB.
// Empty is 0.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits, factor := s, 1.0
	for _, unit := range []struct {
		name   string
		factor float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(s, unit.name); ok {
			digits, factor = strings.TrimSpace(rest), unit.factor
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if n *= factor; err != nil || !(n >= 1) || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%.80q: give a number of bytes such as 4096, 500KB or 10MiB", s)
	}
	return int64(n), nil
}
