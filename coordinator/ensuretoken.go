package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	pki "skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// EnsureToken gives the token that the file at path holds, as long as it is
// valid for this role and subject; else it makes a new one and writes it there
// with mode 0600. It is for set-ups that start a coordinator and its users
// together.
func (c *Coordinator) EnsureToken(ctx context.Context, path, role, subject string) (string, error) {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read token: %w", err)
	}
	if secret := strings.TrimSpace(string(old)); secret != "" && c.valid(secret, role, subject) {
		return secret, nil
	}
	secret, _, err := c.CreateToken(ctx, &skerryv1.CreateTokenRequest{Role: role, Subject: subject, Description: "made by " + role + " set-up"})
	if err != nil {
		return "", err
	}
	if err := pki.WriteSecret(path, []byte(secret+"\n")); err != nil {
		return "", fmt.Errorf("write token: %w", err)
	}
	return secret, nil
}

func (c *Coordinator) valid(secret, role, subject string) bool {
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + secret}}}
	id, problem := c.authenticate(r, time.Now())
	return problem == nil && id.role == role && id.subject == subject
}
