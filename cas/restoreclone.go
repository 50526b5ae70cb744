package cas

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// cloneSource is the directory that a restore replaces. A large file that
// lies in it under the same path most likely has much of the content that is
// to be restored: where the file system shares blocks between files
// (FICLONE: XFS, Btrfs), it is cloned, and only what differs is written. The
// clone is out of everyone else's reach before it is looked at, so whoever
// owns the source may do with it meanwhile what he likes.
type cloneSource struct {
	root  *os.File // nil: there is none
	off   atomic.Bool
	clone func(to, from int) error
}

func newCloneSource(o *RestoreOptions, dest string, clone func(to, from int) error) *cloneSource {
	c := &cloneSource{clone: clone}
	if !o.Replace {
		return c
	}
	fd, err := unix.Open(dest, openDirFlags, 0)
	if err == nil {
		c.root = os.NewFile(uintptr(fd), dest)
	}
	return c
}

func (c *cloneSource) close() {
	if c.root != nil {
		_ = c.root.Close()
	}
}

// fileClone shares the blocks of a whole file.
func fileClone(to, from int) error { return unix.IoctlFileClone(to, from) }

// open opens a regular file without holes below the root, following no link
// and crossing no mount; -1 when there is none.
func (c *cloneSource) open(path string) (fd int, size int64) {
	if c.root == nil || c.off.Load() {
		return -1, 0
	}
	fd, err := unix.Openat2(int(c.root.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, 0
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks*512 < st.Size {
		_ = unix.Close(fd)
		return -1, 0
	}
	return fd, st.Size
}

// into makes the empty file fd a clone of what is at path, and returns how
// many bytes it has; 0 when it could not.
func (c *cloneSource) into(fd int, path string) int64 {
	from, size := c.open(path)
	if from < 0 {
		return 0
	}
	defer unix.Close(from)
	switch err := c.clone(fd, from); {
	case err == nil:
		return size
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EXDEV):
		c.off.Store(true)
	}
	return 0
}

// cloneFile makes the file fd from a clone, and reports how many bytes it
// wrote and how many it left as they were; both are 0 when there was nothing
// to clone.
func (r *restorer) cloneFile(fd int, d *restoreDir, x *Entry) (wrote, kept int64, err error) {
	if x.Chunks.IsZero() || x.Sparse || r.source.root == nil || r.source.off.Load() {
		return 0, 0, nil
	}
	have := r.source.into(fd, d.path(x.Name))
	if have == 0 {
		return 0, 0, nil
	}
	f, err := r.store.OpenFile(r.ctx, *x)
	if err == nil {
		err = unix.Ftruncate(fd, x.Size)
	}
	if err != nil {
		return 0, 0, err
	}
	m := &mender{restorer: r, fd: fd, list: f.list, have: have, memory: r.store.caches.memories.load(x.Chunks)}
	err = m.run()
	return m.wrote.Load(), f.list.size - m.wrote.Load(), err
}

// mender compares a file with a chunk list and writes the chunks that differ.
// The file is nobody else's.
type mender struct {
	*restorer
	fd     int
	list   *chunkList
	have   int64        // beyond that the file has a hole, which is to be filled even with zeros
	memory *chunkMemory // of the list, if there is one: its MACs are faster than digests
	wrote  atomic.Int64
}

func (m *mender) run() error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, m.store.cfg.Workers)
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil && !m.stop() {
				i := int(next.Add(1) - 1)
				if i >= len(m.list.chunks) {
					return
				}
				errs[w] = m.chunk(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// chunk sees to it that chunk i is in the file.
func (m *mender) chunk(i int) error {
	ref := m.list.chunks[i]
	if ref.off+ref.size <= m.have && ref.size <= storeMaxChunk {
		same, err := m.same(i)
		if same || err != nil {
			return err
		}
	}
	content, err := m.store.GetBytes(m.ctx, ref.digest)
	if err == nil && int64(len(content)) != ref.size {
		err = &CorruptError{Digest: ref.digest, Reason: "its file says that it has another size"}
	}
	if err != nil {
		return err
	}
	n, err := (&fdWriterAt{m.fd, ref.off}).Write(content)
	m.wrote.Add(int64(n))
	return err
}

// same reports whether the file has chunk i. A MAC also covers the byte
// behind the chunk: where that differs, or is being written, the digest tells.
func (m *mender) same(i int) (bool, error) {
	ref := m.list.chunks[i]
	buf := chunkBuffers.Get().(*chunkBuffer)
	defer chunkBuffers.Put(buf)
	b := buf[:min(ref.size+1, m.list.size-ref.off)]
	if err := readFullAt(m.fd, b, ref.off); err != nil {
		return false, err
	}
	if m.memory != nil && m.store.caches.memories.key().of(b) == m.memory.macs[i] {
		return true, nil
	}
	return DigestOf(b[:ref.size]) == ref.digest, nil
}
