package supervisor

import (
	"bytes"
	"reflect"
	"testing"
)

// The rules of offsets, without a command (I3).
func TestInputOffsets(t *testing.T) {
	type step struct {
		q    inputRequest
		want inputAnswer
	}
	send := func(writer string, offset uint64, data string) inputRequest {
		return inputRequest{writer: writer, offset: offset, data: []byte(data)}
	}
	closing := func(q inputRequest) inputRequest { q.close = true; return q }
	for name, tc := range map[string]struct {
		steps []step
		text  string
	}{
		"one after the other": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("a", 2, "c"), inputAnswer{Accepted: 3, Written: 1}},
		}, "abc"},
		"a repetition": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("a", 2, "c"), inputAnswer{Accepted: 3, Written: 1}},
			{send("a", 0, "ab"), inputAnswer{Accepted: 3, Written: 2}},
		}, "abc"},
		"a longer repetition": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("a", 0, "abcd"), inputAnswer{Accepted: 4, Written: 4}},
		}, "abcd"},
		"a gap": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("a", 3, "d"), inputAnswer{Accepted: 2, Refusal: refusedGap}},
			{send("a", 1<<63, "d"), inputAnswer{Accepted: 2, Refusal: refusedGap}},
		}, "ab"},
		"two writers": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("b", 0, "xy"), inputAnswer{Accepted: 2, Refusal: refusedConflict}},
			{send("b", 2, "xy"), inputAnswer{Accepted: 4, Written: 2}},
			{send("a", 2, "c"), inputAnswer{Accepted: 4, Refusal: refusedConflict}},
			{send("a", 4, "c"), inputAnswer{Accepted: 5, Written: 1}},
		}, "abxyc"},
		"a repetition over another's write": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("b", 2, "xy"), inputAnswer{Accepted: 4, Written: 2}},
			{send("a", 0, "ab"), inputAnswer{Accepted: 4, Written: 2}},
			{send("a", 0, "abc"), inputAnswer{Accepted: 4, Written: 2}},
		}, "abxy"},
		"close": {[]step{
			{closing(send("a", 0, "ab")), inputAnswer{Accepted: 2, Written: 2, Closed: true}},
			{closing(send("a", 0, "ab")), inputAnswer{Accepted: 2, Written: 2, Closed: true}},
			{send("a", 2, "c"), inputAnswer{Accepted: 2, Closed: true}},
		}, "ab"},
		"close of one who is behind": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{closing(send("b", 0, "")), inputAnswer{Accepted: 2, Refusal: refusedConflict}},
			{closing(send("b", 2, "")), inputAnswer{Accepted: 2, Closed: true}},
		}, "ab"},
		"a question": {[]step{
			{send("a", 0, "ab"), inputAnswer{Accepted: 2, Written: 2}},
			{send("", 0, ""), inputAnswer{Accepted: 2}},
		}, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInput(&Input{}, nil)
			for i, s := range tc.steps {
				q, ok := parseInputRequest(s.q.encode())
				if !ok {
					t.Fatal("a request that was encoded cannot be parsed")
				}
				if got := in.accept(q); got != s.want {
					t.Errorf("step %d: %+v, want %+v", i, got, s.want)
				}
			}
			if string(in.pending) != tc.text {
				t.Errorf("taken %q, want %q", in.pending, tc.text)
			}
		})
	}
}

// What the shim holds is bounded, by bytes and by writers.
func TestInputIsBounded(t *testing.T) {
	in := newInput(&Input{}, nil)
	chunk := bytes.Repeat([]byte("x"), MaxInputChunk)
	for i := range 3 {
		a := in.accept(inputRequest{writer: "a", offset: in.total, data: chunk})
		want := MaxInputChunk
		if i == 2 {
			want = 0
		}
		if a.Written != want {
			t.Fatalf("chunk %d: %d bytes taken, want %d", i, a.Written, want)
		}
	}
	if !in.full() || cap(in.pending) != inputBuffer {
		t.Errorf("full %v, room for %d bytes", in.full(), cap(in.pending))
	}
	for i := range 100 {
		in.pending = in.pending[:0]
		in.accept(inputRequest{writer: string(rune('a' + i)), offset: in.total, data: []byte("y")})
	}
	if len(in.writers) > maxWriters {
		t.Errorf("%d writers are remembered", len(in.writers))
	}
}

func TestMalformedInputRequests(t *testing.T) {
	good := inputRequest{writer: "w", offset: 7, data: []byte("data"), close: true}
	if q, ok := parseInputRequest(good.encode()); !ok || !reflect.DeepEqual(q, good) {
		t.Errorf("%+v became %+v", good, q)
	}
	for name, b := range map[string][]byte{
		"short":       []byte("input 123"),
		"long writer": append(inputRequest{}.encode()[:inputHeader-1], 200, 'x'),
		"much data":   inputRequest{data: make([]byte, MaxInputChunk+1)}.encode(),
	} {
		if _, ok := parseInputRequest(b); ok {
			t.Errorf("%s is accepted", name)
		}
	}
}
