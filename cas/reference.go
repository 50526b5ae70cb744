package cas

import "fmt"

// Ref is an object that a directory or a chunk list names.
type Ref struct {
	Kind   Kind
	Digest Digest
	Size   int64  // of the file for a blob or a chunk list; -1 where it is not known
	File   Digest // of the whole file, for a chunk list
	Name   string // of a directory, in the one that names it
}

// References returns what the content of a directory or chunk list names, in
// its order and as often as it does. The empty file has no object and is left
// out. The content is checked as strictly as on every read.
func References(kind Kind, content []byte) ([]Ref, error) {
	switch kind {
	case KindDirectory:
		dir, err := parseDirectory(content)
		if err != nil {
			return nil, err
		}
		return dir.references(), nil
	case KindChunkList:
		list, err := parseChunkList(content)
		if err != nil {
			return nil, err
		}
		return list.references(), nil
	}
	return nil, fmt.Errorf("references of an object of kind %d: %w", kind, ErrInvalid)
}

func (d *Directory) references() []Ref {
	refs := make([]Ref, 0, len(d.Entries))
	for i := range d.Entries {
		x := &d.Entries[i]
		switch {
		case x.Type == TypeDir:
			refs = append(refs, Ref{Kind: KindDirectory, Digest: x.Digest, Size: -1, Name: x.Name})
		case x.Type == TypeFile && !x.Chunks.IsZero():
			refs = append(refs, Ref{Kind: KindChunkList, Digest: x.Chunks, Size: x.Size, File: x.Digest})
		case x.Type == TypeFile && x.Size > 0:
			refs = append(refs, Ref{Kind: KindBlob, Digest: x.Digest, Size: x.Size})
		}
	}
	return refs
}

func (c *chunkList) references() []Ref {
	refs := make([]Ref, 0, len(c.chunks))
	for _, ref := range c.chunks {
		refs = append(refs, Ref{Kind: KindBlob, Digest: ref.digest, Size: ref.size})
	}
	return refs
}

// ChunkedFile returns the size and the digest of the file that the content of
// a chunk list is of.
func ChunkedFile(content []byte) (size int64, file Digest, err error) {
	list, err := parseChunkList(content)
	if err != nil {
		return 0, Digest{}, err
	}
	return list.size, list.whole, nil
}
