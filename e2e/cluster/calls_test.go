package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// What is known about a call afterwards.
type kind int

const (
	// done: it succeeded.
	done kind = iota
	// refused: it had no effect.
	refused
	// unknown: it may have had its effect, may have it later, or never.
	unknown
)

// outcome is the end of one call.
type outcome struct {
	kind      kind
	reason    string
	retryable bool
	text      string
}

func (o outcome) String() string {
	return fmt.Sprintf("%s %s %s", map[kind]string{done: "done", refused: "refused", unknown: "unknown"}[o.kind], o.reason, o.text)
}

// callers speak JSON to coordinators.
type callers struct{ client *http.Client }

func newCallers(t *testing.T, caFile string) *callers {
	t.Helper()
	pem, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("%s has no certificate", caFile)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 64,
		DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &callers{&http.Client{Transport: transport}}
}

const callTimeout = 12 * time.Second

// call makes one call, once.
func (c *callers) call(ctx context.Context, endpoint, token, method string, in, out any) outcome {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return outcome{kind: refused, text: err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/skerry.v1."+method, bytes.NewReader(body))
	if err != nil {
		return outcome{kind: refused, text: err.Error()}
	}
	req.GetBody = nil // a transport that sends a call twice by itself would spoil the history
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := c.client.Do(req)
	if err != nil {
		return outcome{kind: unknown, retryable: true, text: err.Error()}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return outcome{kind: unknown, retryable: true, text: err.Error()}
	}
	if res.StatusCode == http.StatusOK {
		if out != nil {
			if err := json.Unmarshal(text, out); err != nil {
				return outcome{kind: refused, text: err.Error()}
			}
		}
		return outcome{kind: done}
	}
	return refusal(text)
}

// refusal reads a typed error. What carries no type came from something between.
func refusal(text []byte) outcome {
	var e struct {
		Message string
		Details []struct {
			Debug struct {
				Reason    string
				Retryable bool
			}
		}
	}
	if json.Unmarshal(text, &e) != nil || len(e.Details) == 0 {
		return outcome{kind: unknown, retryable: true, text: string(text)}
	}
	o := outcome{kind: refused, reason: e.Details[0].Debug.Reason, retryable: e.Details[0].Debug.Retryable, text: e.Message}
	if o.reason == "OUTCOME_UNKNOWN" {
		o.kind = unknown
	}
	return o
}
