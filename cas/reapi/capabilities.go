package reapi

import (
	"context"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/bazelbuild/remote-apis/build/bazel/semver"

	"skerry.internal/cas"
)

// GetCapabilities implements CapabilitiesServer.
func (s *Service) GetCapabilities(_ context.Context, req *repb.GetCapabilitiesRequest) (*repb.ServerCapabilities, error) {
	if err := checkRequest(req.GetInstanceName(), repb.DigestFunction_UNKNOWN); err != nil {
		return nil, err
	}
	return &repb.ServerCapabilities{
		CacheCapabilities: &repb.CacheCapabilities{
			DigestFunctions:             []repb.DigestFunction_Value{repb.DigestFunction_SHA256},
			MaxBatchTotalSizeBytes:      maxBatch,
			MaxCasBlobSizeBytes:         s.cfg.MaxBlobBytes,
			SymlinkAbsolutePathStrategy: repb.SymlinkAbsolutePathStrategy_ALLOWED,
			SplitBlobSupport:            true,
			SpliceBlobSupport:           true,
			FastCdc_2020Params:          &repb.FastCdc2020Params{AvgChunkSizeBytes: cas.AverageChunk},
		},
		LowApiVersion:  &semver.SemVer{Major: 2, Minor: 0},
		HighApiVersion: &semver.SemVer{Major: 2, Minor: 13},
	}, nil
}
