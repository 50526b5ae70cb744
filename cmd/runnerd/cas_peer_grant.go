package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
)

// needsNoStore keeps the flag that all other store commands require from
// being required.
func needsNoStore(c *cobra.Command) *cobra.Command {
	c.Flags().String("store", "", "not used")
	_ = c.Flags().MarkHidden("store")
	return c
}

// keyReport is what `cas keygen --json` prints.
type keyReport struct {
	KeyID   string `json:"keyId"`
	Private string `json:"private"` // the files
	Public  string `json:"public"`
}

func casKeygen(f *casFlags) *cobra.Command {
	return needsNoStore(&cobra.Command{
		Use: "keygen FILE", Short: "Make a key that signs grants",
		Long:    "Make an Ed25519 key that signs grants: the private half in FILE, the public half, for those that serve, in FILE.pub.",
		Example: "  runnerd cas keygen grant.key", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			public, key, err := ed25519.GenerateKey(nil)
			if err != nil {
				return err
			}
			private, pub, err := peer.MarshalKey(key)
			if err != nil {
				return err
			}
			if err := writeNew(args[0], private, 0o600); err != nil {
				return err
			}
			if err := writeNew(args[0]+".pub", pub, 0o644); err != nil {
				return err
			}
			r := keyReport{fmt.Sprintf("%x", peer.KeyIDOf(public)), args[0], args[0] + ".pub"}
			return f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "key %s in %s and %s\n", r.KeyID, r.Private, r.Public)
				return err
			})
		},
	})
}

// writeNew writes a file that must not exist.
func writeNew(path string, content []byte, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// grantReport is what `cas grant --json` prints.
type grantReport struct {
	Grant    string     `json:"grant"`
	ID       string     `json:"id"`
	Tree     cas.Digest `json:"tree"`
	Source   string     `json:"source"`
	For      string     `json:"for"`
	Expires  time.Time  `json:"expires"`
	MaxBytes uint64     `json:"maxBytes"`
}

const signingKeyEnv = "SKERRY_GRANT_SIGNING_KEY"

func casGrant(f *casFlags) *cobra.Command {
	var key, tree, audience, source, most string
	var life time.Duration
	c := needsNoStore(&cobra.Command{
		Use: "grant", Short: "Sign a token that allows reading one tree of a store",
		Long: "Sign a token that allows one receiver to read one tree of one source for a time. Who holds the token may use it,\n" +
			"unless the source authenticates receivers by certificates.",
		Example: "  runnerd cas grant --key grant.key --tree sha256:... --for node7 --expires 1h >grant", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signer, err := signingKey(key)
			if err != nil {
				return err
			}
			root, err := cas.ParseDigest(tree)
			if err != nil {
				return fmt.Errorf("--tree: %w", err)
			}
			limit, err := parseBytes(most)
			if err != nil {
				return fmt.Errorf("--max-bytes: %w", err)
			}
			g := peer.NewGrant(root, source, audience, time.Now(), life)
			g.MaxBytes = uint64(limit)
			token, err := g.Sign(signer)
			if err != nil {
				return err
			}
			r := grantReport{token, g.ID.String(), root, source, audience, g.NotAfter.UTC(), g.MaxBytes}
			return f.print(cmd.OutOrStdout(), r, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, token)
				return err
			})
		},
	})
	c.Flags().StringVar(&key, "key", "", "file of the signing key; default: the key itself in $"+signingKeyEnv)
	c.Flags().StringVar(&tree, "tree", "", "digest of the tree (required)")
	c.Flags().StringVar(&audience, "for", "", "name of the receiver (required)")
	c.Flags().StringVar(&source, "source", "store", "name of the source, as its serve --name has it")
	c.Flags().DurationVar(&life, "expires", time.Hour, "how long the grant is valid; at most 168h")
	c.Flags().StringVar(&most, "max-bytes", "", "how many bytes may be sent for it in all, such as 10GiB (default: no limit)")
	_ = c.MarkFlagRequired("tree")
	_ = c.MarkFlagRequired("for")
	return c
}

func signingKey(path string) (ed25519.PrivateKey, error) {
	text := []byte(os.Getenv(signingKeyEnv))
	if path != "" {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	} else if len(text) == 0 {
		return nil, fmt.Errorf("no signing key; give --key FILE or $%s", signingKeyEnv)
	}
	return peer.ParsePrivateKey(text)
}

const grantEnv = "SKERRY_GRANT"

// grantToken finds the token that --grant means.
func grantToken(flag string) (string, error) {
	if path, isFile := strings.CutPrefix(flag, "@"); isFile {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
	if flag == "" {
		flag = os.Getenv(grantEnv)
	}
	if flag == "" {
		return "", fmt.Errorf("no grant; give --grant @FILE, --grant TOKEN or $%s", grantEnv)
	}
	return flag, nil
}
