package workspace

import (
	"context"
	"strings"

	"skerry.internal/cas"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Changes lists what differs from a to b: at most `most` paths in each list,
// with exact counts. A zero digest is the empty tree.
func Changes(ctx context.Context, store *cas.Store, a, b cas.Digest, most int) (*skerryv1.Changes, error) {
	c := &skerryv1.Changes{}
	err := store.Diff(ctx, a, b, func(d cas.Change) error {
		list, count := &c.Modified, &c.ModifiedCount
		switch d.Kind {
		case cas.Created:
			list, count = &c.Created, &c.CreatedCount
		case cas.Deleted:
			list, count = &c.Deleted, &c.DeletedCount
		case cas.Modified:
		}
		*count++
		if len(*list) < most {
			*list = append(*list, Display(d.Path))
		} else {
			c.Truncated = true
		}
		return nil
	})
	return c, err
}

// Display makes a raw path showable: bytes that are no UTF-8 become U+FFFD.
func Display(p string) string { return strings.ToValidUTF8(p, "\uFFFD") }
