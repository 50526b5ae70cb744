package placement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MaxConditions is how many conditions a selector may have.
const MaxConditions = 16

// Condition is one on a runner's labels.
type Condition struct {
	Key string
	// Values one of which the label must have or, when Not is set, none.
	Values []string
	Not    bool
	text   string
}

// String is the condition as it was written.
func (c Condition) String() string { return c.text }

// Holds reports whether labels meet the condition. A label that is not set has
// no value, so that only a negation holds for it.
func (c Condition) Holds(labels map[string]string) bool {
	value, ok := labels[c.Key]
	return (ok && slices.Contains(c.Values, value)) != c.Not
}

var (
	keyPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,254}[A-Za-z0-9])?$`)
	valuePattern = regexp.MustCompile(`^[^\s,()=!]{0,256}$`)
	oneOf        = regexp.MustCompile(`^(\S+)\s+in\s*\(([^()]*)\)$`)
)

var errCondition = errors.New(`write k=v, k!=v or "k in (v, w)"`)

// ParseCondition reads "k=v", "k!=v" or "k in (v, w)".
func ParseCondition(text string) (Condition, error) {
	const most = 1024
	text = strings.TrimSpace(text)
	if len(text) > most {
		return Condition{}, fmt.Errorf("longer than %d bytes", most)
	}
	c := Condition{text: text}
	if m := oneOf.FindStringSubmatch(text); m != nil {
		c.Key = m[1]
		for _, v := range strings.Split(m[2], ",") {
			c.Values = append(c.Values, strings.TrimSpace(v))
		}
		return c, c.check()
	}
	key, value, found := strings.Cut(text, "=")
	if !found {
		return Condition{}, errCondition
	}
	key, c.Not = strings.CutSuffix(key, "!")
	c.Key, c.Values = strings.TrimSpace(key), []string{strings.TrimSpace(value)}
	return c, c.check()
}

func (c Condition) check() error {
	if !keyPattern.MatchString(c.Key) {
		return errCondition
	}
	for _, v := range c.Values {
		if !valuePattern.MatchString(v) {
			return errCondition
		}
	}
	return nil
}
