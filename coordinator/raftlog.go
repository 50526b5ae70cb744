package coordinator

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends what the Raft library logs to logger.
func raftLogger(logger *slog.Logger) hclog.Logger {
	intercept := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Output: io.Discard, Level: hclog.Off})
	intercept.RegisterSink(slogSink{logger})
	return intercept
}

type slogSink struct{ logger *slog.Logger }

// expected are errors of the library that come with each stop of a peer, or with
// a restored snapshot, which leaves a gap in the log.
var expected = map[string]bool{"failed to decode incoming command": true, "failed to get log": true}

// Accept implements hclog.SinkAdapter. The library's info is our debug and its
// warnings our info: it warns of each election, that of every start included.
func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch {
	case level >= hclog.Error && expected[msg]:
		to = slog.LevelInfo
	case level >= hclog.Error:
		to = slog.LevelError
	case level == hclog.Warn:
		to = slog.LevelInfo
	}
	s.logger.Log(context.Background(), to, msg, append([]any{"part", name}, args...)...)
}
