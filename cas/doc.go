// Package cas is Skerry's content-addressed store: durable objects named by
// the SHA-256 of their content, directory trees built from them, and named
// heads that point at commits.
//
// The write path is Snapshot (walk a directory, store what is new, answer a
// tree digest) followed by Commit (make it durable and move a head). The read
// path never looks at the live directory: ReadDir, Lookup, OpenFile, Walk and
// Diff see committed objects only.
//
// The bytes on disk are described in docs/cas-format.md. Packs are the truth;
// every index can be rebuilt from them.
//
// # Trust
//
// The directories that Snapshot walks are hostile: their names, links and
// types may change during the walk. The store's own directory is not. Objects
// are verified against their digest each time they are read.
package cas
