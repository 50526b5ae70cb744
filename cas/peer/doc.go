// Package peer moves snapshots from one store to another.
//
// The receiver drives: it walks the tree from its root, leaves out what it has
// complete, and asks for the rest in batches; the source answers with pack
// records as they lie. A Grant, signed by whoever directs the transfer, says
// which tree may be read, by whom and until when; a Server gives nothing that
// its root does not lead to, and does not tell what it has beside.
//
// Neither side trusts the other. What comes in is checked against its digest
// before it is stored, in an order in which the receiving store's objects are
// complete at every instant. A transfer that was cut off is resumed by asking
// again: what has arrived is there already.
//
// The wire is not this package's: a Source is what a receiver asks, and
// Server.Fetch answers. docs/transfer-protocol.md has the rules.
package peer
