package reapi

import (
	"strconv"
	"strings"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const maxResource = 1024

// parseRead takes blobs/HASH/SIZE.
func parseRead(name string) (*repb.Digest, error) {
	parts := strings.Split(name, "/")
	if len(name) > maxResource || len(parts) != 3 || parts[0] != "blobs" {
		return nil, badResource(name, "blobs/HASH/SIZE")
	}
	return parseBlob(name, parts[1:])
}

// parseWrite takes uploads/UUID/blobs/HASH/SIZE and ignores metadata behind it.
func parseWrite(name string) (*repb.Digest, error) {
	parts := strings.SplitN(name, "/", 6)
	if len(name) > maxResource || len(parts) < 5 || parts[0] != "uploads" || parts[1] == "" || parts[2] != "blobs" {
		return nil, badResource(name, "uploads/UUID/blobs/HASH/SIZE")
	}
	return parseBlob(name, parts[3:5])
}

func parseBlob(name string, parts []string) (*repb.Digest, error) {
	size, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || size < 0 || strconv.FormatInt(size, 10) != parts[1] {
		return nil, badResource(name, "a size in bytes at the end")
	}
	if _, err := parseHash(parts[0]); err != nil {
		return nil, err
	}
	return &repb.Digest{Hash: parts[0], SizeBytes: size}, nil
}

func badResource(name, want string) error {
	return status.Errorf(codes.InvalidArgument, "resource_name %.200q: want %s, without an instance name and uncompressed", name, want)
}
