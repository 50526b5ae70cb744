package coordinator

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	pki "skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// AdminTokenFile is the name, in the data directory, of the first admin token.
const AdminTokenFile = "admin.token"

// Bootstrap gives a new cluster its first admin token, for the agent "admin",
// and writes its secret to path with mode 0600. It does nothing once an admin
// token exists. The file is written first: a crash between the two steps leaves
// a file that the next start replaces, never a token whose secret is lost.
func (c *Coordinator) Bootstrap(ctx context.Context, path string) (created bool, err error) {
	for _, t := range c.state.Read().Tokens() {
		if t.GetRole() == skerryv1.RoleAdmin {
			return false, nil
		}
	}
	record, secret, err := newToken(&skerryv1.CreateTokenRequest{Role: skerryv1.RoleAdmin, Subject: "admin",
		Description: "made at the first start"}, time.Now())
	if err != nil {
		return false, err
	}
	if err := pki.WriteSecret(path, []byte(secret+"\n")); err != nil {
		return false, fmt.Errorf("write admin token: %w", err)
	}
	if _, err := c.storeToken(ctx, record); err != nil {
		return false, fmt.Errorf("store admin token: %w", err)
	}
	return true, nil
}

// firstAdmin is Bootstrap for the first leader of a cluster, which nobody waits
// for to lead.
func (c *Coordinator) firstAdmin(ctx context.Context) error {
	if !c.cfg.Cluster.Bootstrap {
		return nil
	}
	path := filepath.Join(c.cfg.DataDir, AdminTokenFile)
	created, err := c.Bootstrap(ctx, path)
	if created {
		c.logger.InfoContext(ctx, "first start: the admin token is in a file", "file", path)
	}
	return err
}
