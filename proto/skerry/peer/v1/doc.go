// Package peerv1 holds the generated messages of the transfer of snapshots
// between two stores.
package peerv1
