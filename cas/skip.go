package cas

import (
	"fmt"
)

// SkipKind is what a skipped entry is.
type SkipKind uint8

// The kinds of entry that a snapshot skips.
const (
	SkipFIFO        SkipKind = 1
	SkipSocket      SkipKind = 2
	SkipCharDevice  SkipKind = 3
	SkipBlockDevice SkipKind = 4
	SkipFile        SkipKind = 5
	SkipDir         SkipKind = 6
	SkipSymlink     SkipKind = 7
	SkipOther       SkipKind = 8
)

var skipKindNames = [...]string{"", "fifo", "socket", "char device", "block device", "file", "dir", "symlink", "other"}

// String names the kind.
func (k SkipKind) String() string {
	if int(k) < len(skipKindNames) {
		return skipKindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// SkipReason is why an entry was skipped.
type SkipReason uint8

// The reasons.
const (
	SkipSpecial    SkipReason = 1 // not a file, directory or symlink
	SkipPermission SkipReason = 2 // the daemon may not read it
	SkipMount      SkipReason = 3 // another file system or a mount point
	SkipChanged    SkipReason = 4 // it was another thing at each look
	SkipUnreadable SkipReason = 5 // the file system answered with an error
	SkipTooDeep    SkipReason = 6 // a directory more than 4096 levels below the root
)

var skipReasonNames = [...]string{"", "special file", "permission denied", "mount point", "changed during the snapshot", "unreadable", "nested too deep"}

// String says the reason in words.
func (r SkipReason) String() string {
	if int(r) < len(skipReasonNames) {
		return skipReasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// SkippedName is an entry of which only the name, kind and reason are kept.
type SkippedName struct {
	Name   string
	Kind   SkipKind
	Reason SkipReason
}
