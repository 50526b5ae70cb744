package reapi

import (
	"context"
	"errors"
	"strings"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skerry.internal/cas"
)

// parseDigest checks a digest that a client named.
func parseDigest(d *repb.Digest) (cas.Digest, int64, error) {
	sum, err := parseHash(d.GetHash())
	if err != nil {
		return cas.Digest{}, 0, err
	}
	if d.GetSizeBytes() < 0 {
		return cas.Digest{}, 0, status.Errorf(codes.InvalidArgument, "digest %s: size_bytes %d is negative", d.GetHash(), d.GetSizeBytes())
	}
	return sum, d.GetSizeBytes(), nil
}

// parseHash takes the one spelling of a SHA-256: 64 lower-case digits.
func parseHash(hash string) (cas.Digest, error) {
	d, err := cas.ParseDigest("sha256:" + hash)
	if err != nil || len(hash) != 64 || strings.ToLower(hash) != hash {
		return cas.Digest{}, status.Errorf(codes.InvalidArgument, "digest hash %.80q: want a SHA-256 as 64 lower-case hexadecimal digits", hash)
	}
	return d, nil
}

func digestProto(d cas.Digest, size int64) *repb.Digest {
	return &repb.Digest{Hash: d.Hex(), SizeBytes: size}
}

// checkRequest refuses what the capabilities do not offer.
func checkRequest(instance string, function repb.DigestFunction_Value) error {
	if instance != "" {
		return status.Errorf(codes.InvalidArgument, "instance_name %.80q: there is one cache, with an empty name", instance)
	}
	if function != repb.DigestFunction_UNKNOWN && function != repb.DigestFunction_SHA256 {
		return status.Errorf(codes.InvalidArgument, "digest_function %v: this cache uses SHA256", function)
	}
	return nil
}

// failure is an error of the store as the API has it. The text names no path.
func failure(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	var limit *cas.LimitError
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the caller went away")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the deadline of the call passed")
	case errors.As(err, &limit):
		return status.Error(codes.ResourceExhausted, limit.Error())
	case errors.Is(err, cas.ErrNotFound), errors.Is(err, cas.ErrCorrupt):
		return status.Error(codes.NotFound, "the blob is not in the cache any more; put it again")
	case errors.Is(err, cas.ErrClosed), errors.Is(err, cas.ErrFailed):
		return status.Error(codes.Unavailable, "the store is closed or failed; try again later")
	}
	return status.Error(codes.Internal, "internal error; the runner's log has the cause")
}
