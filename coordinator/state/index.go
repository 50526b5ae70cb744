package state

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// textIndex indexes records by one or more texts that they hold. memdb's own
// indexers find fields by name through reflection on each change, which showed
// in the rate of changes.
type textIndex[T any] struct {
	parts int
	get   func(*T) []string
}

var (
	_ memdb.SingleIndexer = textIndex[int]{}
	_ memdb.SingleIndexer = numberIndex[int]{}
)

// FromObject implements memdb.SingleIndexer; an empty text has no place in an index.
func (i textIndex[T]) FromObject(raw any) (bool, []byte, error) {
	record, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("%T in a table of another type", raw)
	}
	parts := i.get(record)
	for _, part := range parts {
		if part == "" {
			return false, nil, nil
		}
	}
	return true, joined(parts), nil
}

// FromArgs implements memdb.Indexer.
func (i textIndex[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != i.parts {
		return nil, fmt.Errorf("%d arguments, want %d", len(args), i.parts)
	}
	parts := make([]string, len(args))
	for n, arg := range args {
		text, ok := arg.(string)
		if !ok {
			return nil, fmt.Errorf("argument %d is a %T", n, arg)
		}
		parts[n] = text
	}
	return joined(parts), nil
}

// joined ends each part with a zero byte, so that "a" does not match "ab".
func joined(parts []string) []byte {
	size := len(parts)
	for _, part := range parts {
		size += len(part)
	}
	key := make([]byte, 0, size)
	for _, part := range parts {
		key = append(append(key, part...), 0)
	}
	return key
}

// numberIndex indexes records by a number, in its order.
type numberIndex[T any] struct{ get func(*T) uint32 }

// FromObject implements memdb.SingleIndexer.
func (i numberIndex[T]) FromObject(raw any) (bool, []byte, error) {
	record, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("%T in a table of another type", raw)
	}
	return true, binary.BigEndian.AppendUint32(nil, i.get(record)), nil
}

// FromArgs implements memdb.Indexer.
func (i numberIndex[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%d arguments, want 1", len(args))
	}
	number, ok := args[0].(uint32)
	if !ok {
		return nil, fmt.Errorf("argument is a %T", args[0])
	}
	return binary.BigEndian.AppendUint32(nil, number), nil
}
