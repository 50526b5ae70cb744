package cas

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// packReader reads records of sealed packs and of the open one. At most
// maxPackFiles stay open.
type packReader struct {
	dir    string
	writer *packWriter

	mu    sync.Mutex
	files map[uint64]*os.File
}

func newPackReader(dir string, w *packWriter) *packReader {
	return &packReader{dir: dir, writer: w, files: make(map[uint64]*os.File)}
}

// keep takes over the file of a sealed pack.
func (r *packReader) keep(seq uint64, f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.files[seq]; old != nil {
		_ = f.Close()
		return
	}
	r.makeRoom()
	r.files[seq] = f
}

func (r *packReader) file(seq uint64) (*os.File, error) {
	if f := r.writer.openFile(seq); f != nil {
		return f, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[seq]; f != nil {
		return f, nil
	}
	f, err := os.Open(filepath.Join(r.dir, packName(seq)))
	if err != nil {
		return nil, err
	}
	r.makeRoom()
	r.files[seq] = f
	return f, nil
}

// drop lets go of a pack that was removed.
func (r *packReader) drop(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[seq]; f != nil {
		_ = f.Close()
		delete(r.files, seq)
	}
}

// maxPackFiles bounds the packs that are open at once.
const maxPackFiles = 128

// makeRoom closes some pack. Whoever reads it opens it again.
func (r *packReader) makeRoom() {
	for seq, f := range r.files {
		if len(r.files) < maxPackFiles {
			return
		}
		_ = f.Close()
		delete(r.files, seq)
	}
}

// read returns the verified content of the object d at l.
func (r *packReader) read(d Digest, l loc) ([]byte, error) {
	corrupt := func(reason string) error {
		return &CorruptError{Digest: d, Pack: l.pack, Offset: l.off, Reason: reason}
	}
	if l.stored > maxObjectSize {
		return nil, corrupt("index names an impossible size")
	}
	raw, err := r.readRaw(l)
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) {
		return nil, corrupt("pack is missing or cut off")
	}
	if unreadable(err) {
		return nil, corrupt(err.Error())
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d, err)
	}
	h, err := parseRecordHeader(raw)
	if err != nil {
		return nil, corrupt(err.Error())
	}
	if h.digest != d || h.stored != l.stored {
		return nil, corrupt("another object lies there")
	}
	content, err := h.open(raw[recordHeaderSize:])
	if err != nil {
		return nil, corrupt(err.Error())
	}
	return content, nil
}

func (r *packReader) readRaw(l loc) ([]byte, error) {
	if raw, ok := r.writer.readBuffered(l); ok {
		return raw, nil
	}
	raw := make([]byte, recordHeaderSize+l.stored)
	for {
		f, err := r.file(l.pack)
		if err != nil {
			return nil, err
		}
		n, err := f.ReadAt(raw, l.off)
		if n == len(raw) {
			return raw, nil
		}
		if !errors.Is(err, os.ErrClosed) { // else makeRoom chose it
			return nil, err
		}
	}
}

func (r *packReader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for seq, f := range r.files {
		errs = append(errs, f.Close())
		delete(r.files, seq)
	}
	return errors.Join(errs...)
}
