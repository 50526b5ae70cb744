// Package peerrpc carries cas/peer over Connect: the handler that a source
// serves, directly or through the connection that it dialled, and the client
// of a receiver. It has no rules of its own.
package peerrpc

import "skerry.internal/cas"

const (
	// A request names 4096 objects and carries a token.
	maxRequest = 4096*cas.DigestSize + 64<<10
	// An answer's message holds a slice of records, or the digests of a whole batch.
	maxResponse = 1 << 20
)

func join(digests []cas.Digest) []byte {
	b := make([]byte, 0, len(digests)*cas.DigestSize)
	for _, d := range digests {
		b = append(b, d.Bytes()...)
	}
	return b
}
