package reapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// minToken is the fewest bytes of a token: other users of the host can try.
const minToken = 32

// Token is what every client must show, as "authorization: Bearer TOKEN". Also
// on loopback, which other users of the host can reach.
type Token struct{ hash [sha256.Size]byte }

// ReadToken reads a token from a file that its owner alone may read.
func ReadToken(file string) (Token, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Token{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Token{}, fmt.Errorf("%s: others may read it; run: chmod 600 %s", file, file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return Token{}, err
	}
	text := strings.TrimSpace(string(b))
	if len(text) < minToken {
		return Token{}, fmt.Errorf("%s: the token is shorter than %d bytes", file, minToken)
	}
	return Token{sha256.Sum256([]byte(text))}, nil
}

func (t Token) check(md metadata.MD) error {
	for _, value := range md.Get("authorization") {
		scheme, token, _ := strings.Cut(value, " ")
		hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "no valid bearer token in the authorization header")
}

// ServerOptions make a gRPC server ask every call for the token, and bound its
// messages.
func (t Token) ServerOptions() ([]grpc.ServerOption, error) {
	if t == (Token{}) {
		return nil, errors.New("reapi: no token")
	}
	// Before anything of the call's body is read.
	tapped := func(ctx context.Context, info *tap.Info) (context.Context, error) { return ctx, t.check(info.Header) }
	return []grpc.ServerOption{grpc.InTapHandle(tapped), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(256)}, nil
}
