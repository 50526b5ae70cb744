package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const callTimeout = 10 * time.Second

// healthy asks a daemon's metrics port whether it lives.
func healthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("healthz: %s", res.Status)
	}
	return nil
}

// call makes a call as an admin to the first coordinator that answers.
func (c *cluster) call(ctx context.Context, method string, in, out any) error {
	var errs []error
	for _, n := range c.withRole(roleCoordinator) {
		if !n.Process.alive() {
			continue
		}
		err := c.callAt(ctx, n.Endpoint, method, in, out)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", n.Name, err))
	}
	return errors.Join(append(errs, errors.New(method+": no coordinator answers"))...)
}

func (c *cluster) callAt(ctx context.Context, endpoint, method string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	trust, err := os.ReadFile(c.CAFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust)
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/skerry.v1."+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.AdminToken)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", method, res.Status, bytes.TrimSpace(text))
	}
	return json.Unmarshal(text, out)
}

// member is a coordinator as the cluster sees it.
type member struct {
	Name string `json:"name"`
	// Role is "leader", "voter", "non_voter" or "unconfigured".
	Role string `json:"role"`
}

func (c *cluster) members(ctx context.Context) ([]member, error) {
	var out struct{ Members []member }
	err := c.call(ctx, "ClusterService/ListMembers", map[string]any{}, &out)
	return out.Members, err
}

// report is what every command prints.
type report struct {
	// Leader is the name of the coordinator that leads; empty: none does.
	Leader string `json:"leader"`
	// Endpoint is that of the leader, else of the first coordinator that runs.
	Endpoint   string   `json:"endpoint"`
	Endpoints  []string `json:"endpoints"`
	AdminToken string   `json:"adminToken"`
	CAFile     string   `json:"caFile"`
	Dir        string   `json:"dir"`
	Nodes      []*node  `json:"nodes"`
}

func (c *cluster) print(ctx context.Context) error {
	if _, err := os.Stat(c.Dir); errors.Is(err, os.ErrNotExist) {
		return writeJSON(report{Endpoints: []string{}, Nodes: []*node{}, Dir: c.Dir})
	}
	out := report{AdminToken: c.AdminToken, CAFile: c.CAFile, Dir: c.Dir, Nodes: c.Nodes, Endpoints: []string{}}
	if members, err := c.members(ctx); err == nil {
		for _, m := range members {
			if m.Role == "leader" {
				out.Leader = m.Name
			}
		}
	}
	for _, n := range c.Nodes {
		n.State = "stopped"
		if n.Process.alive() {
			n.State = "running"
		}
		if n.Role != roleCoordinator {
			continue
		}
		out.Endpoints = append(out.Endpoints, n.Endpoint)
		if n.Name == out.Leader || (out.Endpoint == "" && n.State == "running") {
			out.Endpoint = n.Endpoint
		}
	}
	return writeJSON(out)
}

// logs prints the end of each node's log, for when up fails.
func (c *cluster) logs() error {
	const most = 2 << 10
	for _, n := range c.Nodes {
		text, err := os.ReadFile(n.log())
		if err != nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "--- %s\n%s\n", n.Name, text[max(0, len(text)-most):])
	}
	return nil
}
