package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"skerry.internal/proto/problem"
)

// value reads and checks one parameter.
func (p param) value(raw json.RawMessage) (any, error) {
	switch p.kind {
	case text:
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil, p.wrong(raw)
		}
		return s, p.checkText(s)
	case number:
		return p.integer(raw)
	case flag:
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return nil, p.wrong(raw)
		}
		return b, nil
	case list:
		if p.pairs {
			return p.pairsOf(raw)
		}
		return p.strings(raw)
	}
	return nil, fmt.Errorf("parameter %s has no kind", p.name)
}

func (p param) checkText(s string) error {
	switch {
	case p.later != "" && s != "":
		return p.unsupported()
	case p.most > 0 && int64(utf8.RuneCountInString(s)) > p.most:
		return problem.Limit(p.name, fmt.Sprintf("%d characters", p.most), "send less")
	case p.bytes > 0 && len(s) > p.bytes:
		return problem.Limit(p.name, fmt.Sprintf("%d bytes", p.bytes), "send less, or in pieces")
	case len(p.enum) > 0 && s != "" && !slices.Contains(p.enum, s):
		return problem.Invalid(p.name, "use one of "+strings.Join(p.enum, ", "), "is %.64q", s)
	}
	return nil
}

// strings reads a list. Unmarshalling into a slice of strings would take a null
// in it for an empty string.
func (p param) strings(raw json.RawMessage) ([]string, error) {
	var items []*string
	if json.Unmarshal(raw, &items) != nil || slices.Contains(items, nil) {
		return nil, p.wrong(raw)
	}
	if p.most > 0 && int64(len(items)) > p.most {
		return nil, problem.Limit(p.name, fmt.Sprintf("%d items", p.most), "pass a file instead")
	}
	out := make([]string, len(items))
	for i, s := range items {
		out[i] = *s
	}
	return out, nil
}

// integer reads a whole number in any of the ways that clients write one: 10,
// 10.0, 1e1 and, as the API writes 64-bit numbers, "10".
func (p param) integer(raw json.RawMessage) (any, error) {
	digits := string(raw)
	if len(digits) > 1 && digits[0] == '"' {
		digits = digits[1 : len(digits)-1]
	}
	const longest = 32 // a long exponent would make a huge number
	if len(digits) > longest || strings.ContainsAny(digits, "/_xXoObBpP") {
		return nil, p.wrong(raw)
	}
	if i := strings.IndexAny(digits, "eE"); i >= 0 && len(digits)-i > 4 {
		return nil, p.wrong(raw)
	}
	r, ok := new(big.Rat).SetString(digits)
	if !ok || !r.IsInt() {
		return nil, p.wrong(raw)
	}
	n := r.Num()
	if n.Cmp(big.NewInt(p.least)) < 0 {
		return nil, problem.Invalid(p.name, p.rangeText(), "is under %d", p.least)
	}
	most := p.most
	if most == 0 {
		most = math.MaxInt64
	}
	if n.Cmp(big.NewInt(most)) > 0 {
		return nil, problem.Limit(p.name, fmt.Sprint(most), p.rangeText())
	}
	if p.later != "" && n.Sign() != 0 {
		return nil, p.unsupported()
	}
	return n.Int64(), nil
}

func (p param) rangeText() string {
	if p.most == 0 {
		return fmt.Sprintf("use %d or more", p.least)
	}
	return fmt.Sprintf("use %d to %d", p.least, p.most)
}

// checkUnicode refuses JSON that is no valid Unicode: decoding would put U+FFFD
// in place of what was sent without telling anyone.
func checkUnicode(raw []byte) error {
	bad := problem.Invalid("", "send valid Unicode; write binary files by a command, for example with base64 -d", "the arguments have text that is not valid Unicode")
	if !utf8.Valid(raw) {
		return bad
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		switch surrogate(raw[i-1:]) {
		case low:
			return bad
		case high:
			if surrogate(raw[min(i+5, len(raw)):]) != low {
				return bad
			}
			i += 10
		case none:
		}
	}
	return nil
}

type half int

const (
	none half = iota
	high
	low
)

// surrogate says which half of a surrogate pair raw starts with as an escape.
func surrogate(raw []byte) half {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' || (raw[2]|0x20) != 'd' {
		return none
	}
	switch c := raw[3] | 0x20; {
	case c == '8' || c == '9' || c == 'a' || c == 'b':
		return high
	case c >= 'c' && c <= 'f':
		return low
	}
	return none
}
