package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
)

// Requests of interactive executions on the shim's socket. "resize ROWS COLS"
// and "connect PORT" are text; input is
//
//	"input " OFFSET(u64, little endian) CLOSE(u8) LENGTH(u8) WRITER DATA
const (
	askInput   = "input "
	askResize  = "resize "
	askConnect = "connect "

	inputHeader = len(askInput) + 8 + 1 + 1
	// MaxWriter bounds the name of a writer in bytes.
	MaxWriter       = 64
	maxInputRequest = inputHeader + MaxWriter + MaxInputChunk
)

// What a shim may have against a request.
const (
	refusedGap            = "gap"
	refusedConflict       = "conflict"
	refusedNotInteractive = "not interactive"
	refusedNoTerminal     = "no terminal"
	refusedNotRunning     = "not running"
	refusedBusy           = "busy"
	refusedMalformed      = "malformed"
	refusedGateway        = "gateway"
)

type inputRequest struct {
	writer string
	offset uint64
	data   []byte
	close  bool
}

func (q inputRequest) encode() []byte {
	b := make([]byte, 0, inputHeader+len(q.writer)+len(q.data))
	b = append(b, askInput...)
	b = binary.LittleEndian.AppendUint64(b, q.offset)
	flag := byte(0)
	if q.close {
		flag = 1
	}
	b = append(b, flag, byte(len(q.writer)))
	b = append(b, q.writer...)
	return append(b, q.data...)
}

func parseInputRequest(b []byte) (q inputRequest, ok bool) {
	if len(b) < inputHeader {
		return q, false
	}
	q.offset = binary.LittleEndian.Uint64(b[len(askInput):])
	q.close = b[inputHeader-2] == 1
	name := int(b[inputHeader-1])
	b = b[inputHeader:]
	if name > len(b) || name > MaxWriter || len(b)-name > MaxInputChunk {
		return q, false
	}
	q.writer, q.data = string(b[:name]), b[name:]
	return q, true
}

// inputAnswer is the state after a request, and what was wrong with it.
type inputAnswer struct {
	Accepted uint64 `json:"accepted"`
	Written  int    `json:"written"`
	Closed   bool   `json:"closed,omitempty"`
	Refusal  string `json:"refusal,omitempty"`
}

func (a inputAnswer) encode() []byte {
	b, err := json.Marshal(a)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

func parseResize(b []byte) (w WindowSize, ok bool) {
	_, err := fmt.Sscanf(strings.TrimPrefix(string(b), askResize), "%d %d", &w.Rows, &w.Cols)
	return w, err == nil && w.validate() == nil
}

func (w WindowSize) request() []byte { return fmt.Appendf(nil, "%s%d %d", askResize, w.Rows, w.Cols) }
