package cas

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxXattrs     = 64       // names of one entry
	maxXattrBytes = 16 << 10 // of one entry's names and values
	// maxTreeXattrBytes bounds all entries of a tree together, since
	// directory objects and stat caches hold them.
	maxTreeXattrBytes = 64 << 20
	maxXattrName      = 255
	xattrPrefix       = "user."
)

// Xattr is an extended attribute of a file or directory. Only names that
// begin with "user." are kept; name and value are raw bytes.
type Xattr struct{ Name, Value string }

// XattrLoss says why extended attributes of an entry are not kept. It is a
// set: several may hold.
type XattrLoss uint8

// The reasons. An entry whose user attributes pass a limit keeps none.
const (
	LostACL        XattrLoss = 1 << iota // it has an access control list
	LostTooMany                          // over 64 names
	LostTooLarge                         // over 16 KiB of names and values
	LostOverall                          // over 64 MiB in the whole tree
	LostUnreadable                       // the file system did not give them
)

var xattrLossNames = []string{"access control list", "more than 64 attributes", "attributes over 16 KiB",
	"attributes of the tree over 64 MiB", "attributes unreadable"}

// String names the reasons.
func (l XattrLoss) String() string {
	var out []string
	for i, name := range xattrLossNames {
		if l&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// attrs are an entry's extended attributes as the stat cache keeps them; nil
// for the many that have none.
type attrs struct {
	list []Xattr
	lost XattrLoss
}

func (a *attrs) xattrs() []Xattr {
	if a == nil {
		return nil
	}
	return a.list
}

func (a *attrs) loss() XattrLoss {
	if a == nil {
		return 0
	}
	return a.lost
}

// bytes is what counts against the limits.
func (a *attrs) bytes() (n int64) {
	for _, x := range a.xattrs() {
		n += x.size()
	}
	return n
}

func (x Xattr) size() int64 { return int64(len(x.Name) + len(x.Value)) }

// attrsOf wraps what a directory object holds of an entry.
func attrsOf(list []Xattr) *attrs {
	if len(list) == 0 {
		return nil
	}
	return &attrs{list: list}
}

// giveBack makes room for attributes again that were counted.
func (w *walker) giveBack(bytes int64) {
	if bytes != 0 {
		w.xattrRoom.Add(bytes)
	}
}

// forget gives back what was counted of an entry that is gone or is read anew.
func (w *walker) forget(n *node) {
	w.giveBack(n.attributes().bytes())
	if n.dir != nil {
		w.giveBack(n.dir.totals.attrs)
	}
}

// readAttrs reads the attributes of an open file or directory.
func (w *walker) readAttrs(fd int) *attrs {
	if w.noXattrs.Load() {
		return nil
	}
	names, err := listXattrs(fd)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		w.noXattrs.Store(true) // nothing in this file system has any
		return nil
	}
	a := &attrs{}
	if err != nil {
		a.lost |= LostUnreadable
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		if strings.HasPrefix(name, "system.") && strings.Contains(name, "acl") {
			a.lost |= LostACL
		}
		return !strings.HasPrefix(name, xattrPrefix)
	})
	a.read(fd, names)
	if len(a.list) > 0 && w.xattrRoom.Add(-a.bytes()) < 0 {
		w.giveBack(a.bytes())
		a.list, a.lost = nil, a.lost|LostOverall
	}
	if len(a.list) == 0 && a.lost == 0 {
		return nil
	}
	return a
}

// read gets the values of the user's attributes, all or none of them.
func (a *attrs) read(fd int, names []string) {
	if len(names) > maxXattrs {
		a.lost |= LostTooMany
		return
	}
	slices.Sort(names)
	list := make([]Xattr, 0, len(names))
	left := int64(maxXattrBytes)
	for _, name := range slices.Compact(names) {
		value, err := getXattr(fd, name, left)
		x := Xattr{name, value}
		switch left -= x.size(); {
		case errors.Is(err, unix.ENODATA):
			continue // removed meanwhile; its ctime tells
		case errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG), err == nil && left < 0:
			a.lost |= LostTooLarge
			return
		case err != nil:
			a.lost |= LostUnreadable
			return
		}
		list = append(list, x)
	}
	a.list = list
}

// listXattrs returns the names, in no order. A list that is longer than the
// kernel can tell is E2BIG.
func listXattrs(fd int) ([]string, error) {
	var small [1024]byte
	buf := small[:]
	for {
		n, err := unix.Flistxattr(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ERANGE) && len(buf) < 64<<10:
			buf = make([]byte, 64<<10)
			continue
		case err != nil || n == 0:
			return nil, err
		}
		return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
	}
}

// getXattr returns a value of up to limit bytes; a longer one is ERANGE.
func getXattr(fd int, name string, limit int64) (string, error) {
	buf := make([]byte, max(1, limit)) // an empty buffer would ask for the size
	for {
		n, err := unix.Fgetxattr(fd, name, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
}

// setXattrs gives an open file or directory its attributes, and reports false
// when it does not take them all.
func setXattrs(fd int, list []Xattr) (bool, error) {
	for _, x := range list {
		err := unix.Fsetxattr(fd, x.Name, []byte(x.Value), 0)
		switch {
		case err == nil:
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EBADF), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOMEM):
			return false, err
		default: // no such attributes here, no room for them, or not allowed
			return false, nil
		}
	}
	return true, nil
}

// encodeXattrs appends a list that is not empty.
func encodeXattrs(e *encoder, list []Xattr) {
	e.uvarint(uint64(len(list)))
	for _, x := range list {
		e.str(x.Name)
		e.str(x.Value)
	}
}

func decodeXattrs(d *decoder) []Xattr {
	n := d.upTo(maxXattrs, "number of attributes")
	if n == 0 {
		d.fail("number of attributes")
	}
	list := make([]Xattr, 0, n)
	for i := uint64(0); i < n && d.err == nil; i++ {
		list = append(list, Xattr{d.str(maxXattrName, "attribute"), d.str(maxXattrBytes, "attribute's value")})
	}
	return list
}

// ValidXattrs reports whether a list of attributes can be kept: names "user.*",
// sorted and different, within the limits of an entry.
func ValidXattrs(list []Xattr) bool {
	if len(list) > maxXattrs {
		return false
	}
	total := int64(0)
	for i, x := range list {
		total += x.size()
		if !strings.HasPrefix(x.Name, xattrPrefix) || len(x.Name) == len(xattrPrefix) || len(x.Name) > maxXattrName ||
			strings.IndexByte(x.Name, 0) >= 0 || i > 0 && list[i-1].Name >= x.Name {
			return false
		}
	}
	return total <= maxXattrBytes
}
