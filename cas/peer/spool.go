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

// spool keeps the records of directories and chunk lists until what they name
// has been stored. It is a file without a name, so memory holds only where
// each one lies.
type spool struct {
	file *os.File

	mu    sync.Mutex
	end   int64
	dirs  map[cas.Digest]span
	lists map[cas.Digest]listed
}

// listed is a chunk list in the spool, and what it says of its file.
type listed struct {
	span
	size int64
	file cas.Digest
}

func newSpool(session *cas.Session) (*spool, error) {
	f, err := session.TempFile()
	if err != nil {
		return nil, fmt.Errorf("spool of directories: %w", err)
	}
	return &spool{file: f, dirs: make(map[cas.Digest]span), lists: make(map[cas.Digest]listed)}, nil
}

func (s *spool) close() error { return s.file.Close() }

// append writes the parts of a record behind each other.
func (s *spool) append(parts ...[]byte) (span, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := span{off: s.end}
	for _, p := range parts {
		if _, err := s.file.WriteAt(p, at.off+at.size); err != nil {
			return span{}, fmt.Errorf("spool of directories: %w", err)
		}
		at.size += int64(len(p))
	}
	s.end += at.size
	return at, nil
}

// add keeps a directory or chunk list. content is what the record holds.
func (s *spool) add(ref cas.Ref, head, payload, content []byte) error {
	at, err := s.append(head, payload)
	if err != nil {
		return err
	}
	if ref.Kind == cas.KindDirectory {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dirs[ref.Digest] = at
		return nil
	}
	size, file, err := cas.ChunkedFile(content)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[ref.Digest] = listed{at, size, file}
	return nil
}

// read returns a record and its content.
func (s *spool) read(at span) (h cas.RecordHeader, payload, content []byte, err error) {
	raw := make([]byte, at.size)
	if _, err := s.file.ReadAt(raw, at.off); err != nil {
		return h, nil, nil, fmt.Errorf("spool of directories: %w", err)
	}
	h, err = cas.ParseRecordHeader(raw)
	if err == nil {
		payload = raw[cas.RecordHeaderSize:]
		content, err = h.Open(payload)
	}
	if err != nil {
		return h, nil, nil, fmt.Errorf("spool of directories: %w", err)
	}
	return h, payload, content, nil
}

var errMalformedTree = errors.New("the tree contradicts itself")
