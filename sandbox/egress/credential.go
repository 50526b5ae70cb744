package egress

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Header is a header field that the gateway puts into plain requests for the
// targets of Rule, in place of any of that name that the client sent. The value,
// Prefix and what File has, is read anew for each request, so that it can be
// changed while the daemon runs; sandboxes never see it.
type Header struct {
	Rule   Rule
	Name   string
	Prefix string
	File   string
}

// maxCredential bounds a header's value.
const maxCredential = 8 << 10

// ErrHeaderName says that a name is no header's, or one that the gateway itself
// writes.
var ErrHeaderName = errors.New("is not the name of a header that can be added")

// CheckHeaderName says whether the gateway can add a header of that name.
func CheckHeaderName(name string) error {
	if !isToken(name) || slices.Contains(hopByHop, strings.ToLower(name)) {
		return fmt.Errorf("%q %w", name, ErrHeaderName)
	}
	return nil
}

// addHeaders gives the client's fields that are passed on, with the operator's
// for the target in place of any of the same name. The client's Connection
// header has no say over those.
func (p *Policy) addHeaders(t target, client []field) ([]field, error) {
	for _, h := range p.Headers {
		if !h.Rule.allows(t) {
			continue
		}
		value, err := h.value()
		if err != nil {
			return nil, fail(http.StatusBadGateway, reasonCredential, "the runner's value for the header %s of this host %v; tell the operator", h.Name, err)
		}
		client = slices.DeleteFunc(client, func(f field) bool { return sameHeader(f.name, h.Name) })
		client = append(client, field{h.Name, value})
	}
	return client, nil
}

// sameHeader takes _ for -, as servers do that make variables of headers.
func sameHeader(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "_", "-"), strings.ReplaceAll(b, "_", "-"))
}

// value never has a path or a part of the value in its error.
func (h Header) value() (string, error) {
	f, err := os.OpenFile(h.File, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hang the request
	if err != nil {
		return "", errors.New("can't be read")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCredential+1))
	if err != nil {
		return "", errors.New("can't be read")
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case text == "":
		return "", errors.New("is empty")
	case len(b) > maxCredential:
		return "", fmt.Errorf("is over %d bytes", maxCredential)
	case strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) >= 0:
		return "", errors.New("has a control character")
	}
	return h.Prefix + text, nil
}
