package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

// savedContext is the context file: whom to call and as whom.
type savedContext struct {
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"`
}

// clients are the services of one endpoint.
type clients struct {
	executions skerryv1connect.ExecutionServiceClient
	files      skerryv1connect.FileServiceClient
	workspaces skerryv1connect.WorkspaceServiceClient
	runners    skerryv1connect.RunnerServiceClient
	tokens     skerryv1connect.TokenServiceClient
	cluster    skerryv1connect.ClusterServiceClient
	joins      skerryv1connect.JoinServiceClient
	agents     skerryv1connect.AgentServiceClient
	timers     skerryv1connect.TimerServiceClient
	inbox      skerryv1connect.InboxServiceClient
	transfers  skerryv1connect.TransferServiceClient
}

func (a *app) contextPath() (string, error) {
	if a.context != "" {
		return a.context, nil
	}
	if p := os.Getenv("SKERRY_CONTEXT"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no place for a context file: %w; set SKERRY_CONTEXT", err)
	}
	return filepath.Join(dir, "skerry", "context.json"), nil
}

// resolve finds endpoint and token: flags, then environment, then context file.
func (a *app) resolve() (savedContext, error) {
	c := savedContext{Endpoint: first(a.endpoint, os.Getenv("SKERRY_ENDPOINT")), Token: first(a.token, os.Getenv("SKERRY_TOKEN"))}
	if c.Endpoint != "" && c.Token != "" {
		return c, c.check()
	}
	path, err := a.contextPath()
	if err != nil {
		return c, err
	}
	var saved savedContext
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return c, fmt.Errorf("read context: %w", err)
	default:
		if err := json.Unmarshal(b, &saved); err != nil {
			return c, fmt.Errorf("read context %s: %w; delete it, or start skerry dev, which writes it", path, err)
		}
	}
	// A token goes only to the endpoint that it was saved with.
	if c.Token == "" && (c.Endpoint == "" || within(c.Endpoint, saved.Endpoint)) {
		c.Token = saved.Token
	}
	c.Endpoint = first(c.Endpoint, saved.Endpoint)
	return c, c.check()
}

func (c savedContext) check() error {
	switch {
	case len(splitEndpoints(c.Endpoint)) == 0:
		return errors.New("no endpoint; set SKERRY_ENDPOINT and SKERRY_TOKEN, or start one here with: skerry dev")
	case c.Token == "":
		return fmt.Errorf("no token for %s; set SKERRY_TOKEN; a saved token goes only to its own endpoint", c.Endpoint)
	}
	return checkEndpoints(c.Endpoint)
}

// base is the endpoint that calls are made for; they may go to others.
func (c savedContext) base() string { return splitEndpoints(c.Endpoint)[0] }

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (a *app) clients() (*clients, error) {
	c, err := a.resolve()
	if err != nil {
		return nil, err
	}
	doer, err := a.httpClient(c, nil)
	if err != nil {
		return nil, err
	}
	base := c.base()
	var options []connect.ClientOption
	return &clients{
		executions: skerryv1connect.NewExecutionServiceClient(doer, base, options...),
		files:      skerryv1connect.NewFileServiceClient(doer, base, options...),
		workspaces: skerryv1connect.NewWorkspaceServiceClient(doer, base, options...),
		runners:    skerryv1connect.NewRunnerServiceClient(doer, base, options...),
		tokens:     skerryv1connect.NewTokenServiceClient(doer, base, options...),
		cluster:    skerryv1connect.NewClusterServiceClient(doer, base, options...),
		joins:      skerryv1connect.NewJoinServiceClient(doer, base, options...),
		agents:     skerryv1connect.NewAgentServiceClient(doer, base, options...),
		timers:     skerryv1connect.NewTimerServiceClient(doer, base, options...),
		inbox:      skerryv1connect.NewInboxServiceClient(doer, base, options...),
		transfers:  skerryv1connect.NewTransferServiceClient(doer, base, options...),
	}, nil
}

// httpClient speaks the given protocols, or what the endpoint chooses.
func (a *app) httpClient(c savedContext, protocols *http.Protocols) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if file := first(a.caFile, os.Getenv("SKERRY_CA_FILE")); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("ca-file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca-file: %s has no PEM certificate", file)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	if protocols != nil {
		transport.Protocols = protocols
	}
	return &http.Client{
		Transport: bearer{token: c.Token, next: newFailover(c.Endpoint, transport)},
		// The API never redirects; a redirect would carry the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the endpoint redirects; set it to the final address")
		},
	}, nil
}

// bearer adds the token to each call.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// save writes the context file, readable by its owner alone.
func (c savedContext) save(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write context: %w", err)
	}
	return writeJSONFile(path, c)
}

// writeJSONFile replaces path in one step.
func writeJSONFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".skerry-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
