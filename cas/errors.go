package cas

import (
	"errors"
	"fmt"
)

// The kinds of failure a caller may tell apart with errors.Is.
var (
	// ErrNotFound: the object, head or path is not there.
	ErrNotFound = errors.New("not found")
	// ErrExist: a restore's destination holds something already.
	ErrExist = errors.New("destination exists and is not empty")
	// ErrCorrupt: stored bytes do not match their checksum or digest.
	ErrCorrupt = errors.New("corrupt")
	// ErrFenced: the commit's epoch is older than the head's.
	ErrFenced = errors.New("fenced by a newer epoch")
	// ErrConflict: the head is not where the commit expected it.
	ErrConflict = errors.New("head moved")
	// ErrLocked: another process holds the store.
	ErrLocked = errors.New("store is locked by another process; stop it or use another directory")
	// ErrVersion: written by a version of Skerry that this one does not know.
	ErrVersion = errors.New("unknown format version")
	// ErrOutside: a path leads outside its tree.
	ErrOutside = errors.New("path leads outside the tree")
	// ErrLoop: too many symbolic links.
	ErrLoop = errors.New("too many levels of symbolic links")
	// ErrNotDir: a component of a path is not a directory.
	ErrNotDir = errors.New("not a directory")
	// ErrInvalid: an argument or an encoding breaks a rule.
	ErrInvalid = errors.New("invalid")
	// ErrLimit: a limit was passed; see LimitError.
	ErrLimit = errors.New("limit exceeded")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrFailed: an fsync failed, so what reached the disk is unknown. The
	// store refuses writes until it is opened again.
	ErrFailed = errors.New("store failed to reach stable storage; reopen it")
	// ErrMetaLost: packs hold commits but meta.db is gone.
	ErrMetaLost = errors.New("meta.db is missing; restore it, or open with Config.RecoverMeta to rebuild heads from commits")
)

// CorruptError names the damaged record. It matches ErrCorrupt.
type CorruptError struct {
	Digest Digest // zero when the record's header is unreadable
	Pack   uint64
	Offset int64
	Reason string
}

// Error implements error.
func (e *CorruptError) Error() string {
	name := e.Digest.String()
	if name == "" {
		name = "record"
	}
	return fmt.Sprintf("%s in pack %016x at offset %d is corrupt: %s", name, e.Pack, e.Offset, e.Reason)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// LimitError says which limit was passed, and where. It matches ErrLimit.
type LimitError struct {
	What  string // "files", "bytes", "depth", ...
	Limit int64
	Path  string // the entry that passed it; "" when none in particular
}

// Error implements error.
func (e *LimitError) Error() string {
	msg := fmt.Sprintf("limit exceeded: more than %d %s", e.Limit, e.What)
	if e.Path != "" {
		msg += fmt.Sprintf(" at %.200q", e.Path)
	}
	return msg + "; remove what is not needed or raise the limit"
}

// Unwrap makes errors.Is(err, ErrLimit) true.
func (e *LimitError) Unwrap() error { return ErrLimit }

// FencedError says which epoch fenced the caller. It matches ErrFenced.
type FencedError struct {
	Head           string
	Epoch, Current uint64
}

// Error implements error.
func (e *FencedError) Error() string {
	return fmt.Sprintf("head %q: epoch %d is fenced by epoch %d; fetch the workspace's assignment again",
		e.Head, e.Epoch, e.Current)
}

// Unwrap makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Unwrap() error { return ErrFenced }

// ConflictError says where the head is. It matches ErrConflict.
type ConflictError struct {
	Head            string
	Expect, Current Digest
}

// Error implements error.
func (e *ConflictError) Error() string {
	show := func(d Digest) string {
		if d.IsZero() {
			return "no commit"
		}
		return d.String()
	}
	return fmt.Sprintf("head %q is at %s, not at %s; read it again and retry", e.Head, show(e.Current), show(e.Expect))
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// VersionError says what was found. It matches ErrVersion.
type VersionError struct {
	What      string
	Got, Want uint64
}

// Error implements error.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has version %d and this build knows %d; use the build that wrote it", e.What, e.Got, e.Want)
}

// Unwrap makes errors.Is(err, ErrVersion) true.
func (e *VersionError) Unwrap() error { return ErrVersion }

// LackError says that an object is needed and not in the store, such as after a
// pack was lost. It matches ErrCorrupt.
type LackError struct {
	Digest Digest
	What   string // "directory", "chunk list", "commit"
	By     Digest // the object that names it; zero: a head, pin or lease does
}

// Error implements error.
func (e *LackError) Error() string {
	by, way := "", ""
	if !e.By.IsZero() {
		by = fmt.Sprintf(", which %s names,", e.By)
	}
	if e.What == roleCommit.String() && !e.By.IsZero() {
		way = "keep only the commits since then (`runnerd cas gc --keep`), "
	}
	return fmt.Sprintf("%s %s%s is not in the store, so what it names is unknown and nothing is removed; "+
		"put the lost pack back or the same content in again, %sor let go of what needs it (`runnerd cas verify` names that, `runnerd cas rm` lets go)", e.What, e.Digest, by, way)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *LackError) Unwrap() error { return ErrCorrupt }
