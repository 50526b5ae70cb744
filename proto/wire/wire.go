// Package wire is how API messages are encoded: strict JSON on requests,
// default values written out in answers, and decode errors that carry a
// Problem like every other error. Both ends of the API use it.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// HandlerOptions make a handler strict: unknown JSON fields, malformed messages
// and messages over maxBytes are refused with a Problem. Options that add
// interceptors must stand before these, or they don't see such refusals.
func HandlerOptions(maxBytes int) []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(markingCodec{jsonCodec{name: "json", strict: true}}),
		connect.WithCodec(markingCodec{jsonCodec{name: "json; charset=utf-8", strict: true}}),
		connect.WithCodec(markingCodec{protoCodec{}}),
		connect.WithReadMaxBytes(maxBytes),
		boundedGzip(maxBytes),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithInterceptors(decodeErrors{maxBytes: maxBytes}),
	}
}

// compressFrom is the size of an answer in bytes from which compressing it is
// worth its time.
const compressFrom = 16 << 10

// ClientOptions suit a generated client inside Skerry: binary messages without
// compression, since both ends are near each other and most messages small.
func ClientOptions() []connect.ClientOption {
	return []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}
}

// MarshalJSON is the JSON form of a message that people and scripts see:
// lowerCamelCase, default values written out, stable.
func MarshalJSON(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson varies its white space from build to build on purpose.
	var out bytes.Buffer
	out.Grow(len(raw))
	if err := json.Compact(&out, raw); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

type jsonCodec struct {
	name string
	// strict refuses unknown fields.
	strict bool
}

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// IsBinary tells Connect that the form is text.
func (c jsonCodec) IsBinary() bool { return false }

// Marshal implements connect.Codec.
func (c jsonCodec) Marshal(message any) ([]byte, error) {
	m, err := asProto(message)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
}

// MarshalAppend lets Connect reuse buffers.
func (c jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, err := asProto(message)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.MarshalAppend(dst, m)
}

// MarshalStable is used for GET requests.
func (c jsonCodec) MarshalStable(message any) ([]byte, error) {
	m, err := asProto(message)
	if err != nil {
		return nil, err
	}
	return MarshalJSON(m)
}

// Unmarshal implements connect.Codec.
func (c jsonCodec) Unmarshal(data []byte, message any) error {
	m, err := asProto(message)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("an empty body is no JSON object; send {}")
	}
	return protojson.UnmarshalOptions{DiscardUnknown: !c.strict}.Unmarshal(data, m)
}

type protoCodec struct{}

// Name implements connect.Codec.
func (protoCodec) Name() string { return "proto" }

// IsBinary tells Connect that the form is not text.
func (protoCodec) IsBinary() bool { return true }

// Marshal implements connect.Codec.
func (protoCodec) Marshal(message any) ([]byte, error) {
	return protoCodec{}.MarshalAppend(nil, message)
}

// MarshalAppend lets Connect reuse buffers.
func (protoCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, err := asProto(message)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, m)
}

// MarshalStable is used for GET requests.
func (protoCodec) MarshalStable(message any) ([]byte, error) {
	m, err := asProto(message)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (protoCodec) Unmarshal(data []byte, message any) error {
	m, err := asProto(message)
	if err != nil {
		return err
	}
	return proto.Unmarshal(data, m)
}

func asProto(message any) (proto.Message, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no protobuf message", message)
	}
	return m, nil
}
