package peer

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"skerry.internal/cas"
)

// span is where a record lies in the spool.
type span struct{ off, size int64 }

// spooled is a directory in the spool, and the directories that it names.
type spooled struct {
	span
	children []cas.Digest
}

// file is what a chunk list is of.
type file struct {
	size   int64
	digest cas.Digest
}

// spool keeps the records of directories and chunk lists until what they name
// has been stored. It is a file without a name, so memory holds only where
// each one lies and how directories nest.
type spool struct {
	data *os.File

	mu    sync.Mutex
	end   int64
	dirs  map[cas.Digest]spooled
	lists map[cas.Digest]span
	files map[cas.Digest]file // by chunk list, as the directories say
}

func newSpool(session *cas.Session) (*spool, error) {
	f, err := session.TempFile()
	if err != nil {
		return nil, fmt.Errorf("spool of directories: %w", err)
	}
	return &spool{data: f, dirs: make(map[cas.Digest]spooled), lists: make(map[cas.Digest]span), files: make(map[cas.Digest]file)}, nil
}

func (s *spool) close() error { return s.data.Close() }

// add keeps a directory or chunk list, unless what it says of chunked files
// contradicts what others say.
func (s *spool) add(a *arrival) error {
	s.mu.Lock()
	at := span{s.end, int64(len(a.record))}
	s.end += at.size
	s.mu.Unlock()
	if _, err := s.data.WriteAt(a.record, at.off); err != nil {
		return fmt.Errorf("spool of directories: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.ref.Kind == cas.KindDirectory {
		return s.addDir(a, at)
	}
	size, digest, err := cas.ChunkedFile(a.content)
	if err != nil {
		return err
	}
	s.lists[a.ref.Digest] = at
	return s.agrees(a.ref.Digest, file{size, digest})
}

func (s *spool) addDir(a *arrival, at span) error {
	d := spooled{span: at}
	for _, r := range a.names {
		switch r.Kind {
		case cas.KindDirectory:
			d.children = append(d.children, r.Digest)
		case cas.KindChunkList:
			if err := s.agrees(r.Digest, file{r.Size, r.File}); err != nil {
				return err
			}
		}
	}
	s.dirs[a.ref.Digest] = d
	return nil
}

func (s *spool) agrees(list cas.Digest, f file) error {
	was, known := s.files[list]
	if known && was != f {
		return malformed(list, "the chunk list %s is of a file of %d bytes, and of another of %d", list, was.size, f.size)
	}
	s.files[list] = f
	return nil
}

// read returns a record as it was added.
func (s *spool) read(at span) (h cas.RecordHeader, payload []byte, err error) {
	raw := make([]byte, at.size)
	if _, err = s.data.ReadAt(raw, at.off); err == nil {
		h, err = cas.ParseRecordHeader(raw)
	}
	if err != nil {
		return h, nil, fmt.Errorf("spool of directories: %w", err)
	}
	payload = raw[cas.RecordHeaderSize:]
	if !h.Holds(payload) {
		return h, nil, fmt.Errorf("spool of directories: %w", cas.ErrCorrupt)
	}
	return h, payload, nil
}

var errMalformedTree = errors.New("the tree contradicts itself")
