package egress

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// decision says what became of a request, in audit records and metrics.
type decision string

const (
	allowed   decision = "allow"
	denied    decision = "deny"
	limited   decision = "limit"
	failed    decision = "fail" // allowed, but the server could not be reached
	malformed decision = "malformed"
)

// Reasons of refusals; they are labels of metrics and part of denials.
const (
	reasonNotAllowed = "not_allowed"
	reasonAddress    = "address_not_listed"
	reasonSpelling   = "address_spelling"
	reasonSpecial    = "special_address"
	reasonRemoved    = "policy_removed"
	reasonSNI        = "sni_mismatch"
	reasonNotTLS     = "not_tls"
	reasonMalformed  = "malformed"
	reasonConns      = "max_connections"
	reasonBytes      = "max_bytes"
	reasonGateway    = "gateway_connections"
	reasonResolve    = "name_not_resolved"
	reasonConnect    = "not_connected"
	reasonProxy      = "upstream_proxy"
	reasonCredential = "credential"
	reasonTimeout    = "timeout"
	reasonBroken     = "broken_off"
)

// refusal is an answer of the gateway's own.
type refusal struct {
	status   int
	decision decision
	reason   string
	// why is a sentence without its end.
	why string
}

// Error implements error.
func (r *refusal) Error() string { return r.reason + ": " + r.why }

func deny(reason, format string, args ...any) *refusal {
	return &refusal{http.StatusForbidden, denied, reason, fmt.Sprintf(format, args...)}
}

func fail(status int, reason, format string, args ...any) *refusal {
	return &refusal{status, failed, reason, fmt.Sprintf(format, args...)}
}

// refusalOf types an error of the parser.
func refusalOf(err error) *refusal {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusRequestTimeout, malformed, reasonTimeout, fmt.Sprintf("the request's head did not come within %s", headTimeout)}
	case errors.Is(err, errSpelling):
		return deny(reasonSpelling, "%v", err)
	case errors.Is(err, errHeadTooLarge):
		return &refusal{http.StatusRequestHeaderFieldsTooLarge, malformed, reasonMalformed, err.Error()}
	case errors.Is(err, errVersion):
		return &refusal{http.StatusHTTPVersionNotSupported, malformed, reasonMalformed, err.Error()}
	}
	return &refusal{http.StatusBadRequest, malformed, reasonMalformed, err.Error()}
}

// advice tells an agent what to do, above all whether retrying makes sense.
func (r *refusal) advice(p *Policy, runner string) string {
	switch r.decision {
	case denied:
		return fmt.Sprintf("Retrying will not help, nor will another way out: there is none.\nPolicy %q allows: %s.\nIf the work needs this host, ask the operator of runner %q to extend network.policies.%s.allow.",
			p.Name, p.describe(), runner, p.Name)
	case limited:
		return "Close connections that are not needed, or wait until others are closed, and try again. If it was a byte limit, retrying will not help: ask the operator to raise it."
	case failed:
		if r.reason == reasonCredential {
			return "The policy allows this host; the operator has to mend what the gateway adds to its requests. Retrying will not help until then."
		}
		return "The policy allows this host; the trouble is beyond the gateway. Trying again later may help."
	}
	return "The request is not one that the gateway can pass on safely; sending it again will not help."
}

// response is the whole answer. Clients that tunnel show the status line alone,
// so it says the most.
func (r *refusal) response(p *Policy, runner, where string) string {
	status := fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
	if r.decision == denied {
		status = fmt.Sprintf("%d Denied by Skerry network policy %s (%s), do not retry", r.status, p.Name, r.reason)
	}
	if where == "" {
		where = "-"
	}
	body := fmt.Sprintf("Skerry network policy %q, %s: %s.\n%s\n", p.Name, where, r.why, r.advice(p, runner))
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n", status, len(body))
	fmt.Fprintf(&b, "Skerry-Egress: decision=%s; reason=%s; policy=%s; target=%s\r\n\r\n", r.decision, r.reason, p.Name, where)
	b.WriteString(body)
	return b.String()
}
