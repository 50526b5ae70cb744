package peerrpc

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/problem"
	peerv1 "skerry.internal/proto/skerry/peer/v1"
	"skerry.internal/proto/skerry/peer/v1/peerv1connect"
)

// NewHandler returns the path and the handler to mount there. receiver tells
// who calls, as the transport authenticated it; "" where it did not.
func NewHandler(server *peer.Server, receiver func(*http.Request) string, log *slog.Logger) (string, http.Handler) {
	path, h := peerv1connect.NewPeerServiceHandler(&service{server, log},
		connect.WithReadMaxBytes(maxRequest), connect.WithCompression("gzip", nil, nil), // records are compressed
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, cause any) error {
			log.Error("handler panicked", "procedure", spec.Procedure, "panic", cause)
			return problem.Connect(problem.New(connect.CodeInternal, problem.Internal, "see the source's log", "internal error"))
		}))
	patience := server.Limits().Send
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{receiver: receiver(r), control: http.NewResponseController(w), patience: patience}
		_ = c.control.SetReadDeadline(time.Now().Add(patience)) // for the request
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

type callKey struct{}

// call is what a handler knows of its request's transport.
type call struct {
	receiver string
	control  *http.ResponseController
	patience time.Duration
}

// within gives the receiver patience to take what send sends. Between sends
// there is no deadline, since this side may have to wait then. Where the
// transport has no deadlines, its own time-outs hold.
func (c *call) within(send func() error) error {
	_ = c.control.SetWriteDeadline(time.Now().Add(c.patience))
	err := send()
	if err == nil {
		_ = c.control.SetWriteDeadline(time.Time{})
	}
	return err
}

type service struct {
	server *peer.Server
	log    *slog.Logger
}

// Fetch implements peerv1connect.PeerServiceHandler.
func (s *service) Fetch(ctx context.Context, req *connect.Request[peerv1.FetchRequest], stream *connect.ServerStream[peerv1.FetchResponse]) error {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return problem.Connect(problem.New(connect.CodeInternal, problem.Internal, "see the source's log", "call without a transport"))
	}
	_ = c.control.SetReadDeadline(time.Time{})
	b, err := batchOf(req.Msg)
	if err != nil {
		return wireError(err)
	}
	err = s.server.Fetch(ctx, c.receiver, req.Msg.GetGrant(), b, func(slice peer.Slice) error {
		return c.within(func() error { return stream.Send(responseOf(slice)) })
	})
	if err != nil {
		s.log.Debug("answer ended", "receiver", c.receiver, "err", err)
	}
	return wireError(err)
}

func batchOf(m *peerv1.FetchRequest) (b peer.Batch, err error) {
	for _, part := range []struct {
		field string
		raw   []byte
		to    *[]cas.Digest
	}{{"directories", m.GetDirectories(), &b.Directories}, {"chunkLists", m.GetChunkLists(), &b.ChunkLists}, {"blobs", m.GetBlobs(), &b.Blobs}} {
		if *part.to, err = digestsOf(part.field, part.raw); err != nil {
			return b, err
		}
	}
	return b, nil
}

func digestsOf(field string, raw []byte) ([]cas.Digest, error) {
	if len(raw)%cas.DigestSize != 0 {
		return nil, problem.Invalid(field, "give raw digests of 32 bytes each", "%d bytes", len(raw))
	}
	all := make([]cas.Digest, 0, len(raw)/cas.DigestSize)
	for ; len(raw) > 0; raw = raw[cas.DigestSize:] {
		d, err := cas.DigestFromBytes(raw[:cas.DigestSize])
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func responseOf(s peer.Slice) *peerv1.FetchResponse {
	m := &peerv1.FetchResponse{Records: s.Records, Lacking: join(s.Lacking), Damaged: join(s.Damaged)}
	if s.Plan != nil {
		m.Plan = &peerv1.Plan{Objects: s.Plan.Objects, Bytes: s.Plan.Bytes}
	}
	if s.Done != nil {
		m.Done = &peerv1.Done{Objects: s.Done.Objects, Bytes: s.Done.Bytes}
	}
	return m
}
