package reapi

import (
	"context"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// maxTree bounds the directories that one GetTree gives, each once.
	maxTree = 1_000_000
	// maxDirectory bounds one Directory message.
	maxDirectory = maxBatch
)

// GetTree implements ContentAddressableStorageServer. Directories come level by
// level, each once; what is missing is left out. Pages go on in the stream, and
// a page token repeats the call: it is empty.
func (s *Service) GetTree(req *repb.GetTreeRequest, out repb.ContentAddressableStorage_GetTreeServer) error {
	if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
		return err
	}
	if req.GetPageToken() != "" {
		return status.Error(codes.InvalidArgument, "page_token: this server gives the whole tree in one stream")
	}
	root, err := s.directory(out.Context(), req.GetRootDigest())
	if err != nil {
		return s.fail(err)
	}
	page := &treePage{out: out, most: int(req.GetPageSize())}
	seen := map[string]bool{req.GetRootDigest().GetHash(): true}
	if err := page.add(root); err != nil {
		return err
	}
	for level := []*repb.Directory{root}; len(level) > 0; {
		if level, err = s.level(out.Context(), level, seen, page); err != nil {
			return err
		}
	}
	return page.send()
}

func (s *Service) level(ctx context.Context, above []*repb.Directory, seen map[string]bool, page *treePage) (found []*repb.Directory, err error) {
	for _, dir := range above {
		for _, node := range dir.GetDirectories() {
			if seen[node.GetDigest().GetHash()] {
				continue
			}
			if seen[node.GetDigest().GetHash()] = true; len(seen) > maxTree {
				return nil, status.Errorf(codes.ResourceExhausted, "the tree has more than %d directories", maxTree)
			}
			kid, err := s.directory(ctx, node.GetDigest())
			if ctx.Err() != nil {
				return nil, s.fail(ctx.Err())
			}
			if err != nil {
				continue // the API leaves out what is missing
			}
			if err := page.add(kid); err != nil {
				return nil, err
			}
			found = append(found, kid)
		}
	}
	return found, nil
}

func (s *Service) directory(ctx context.Context, d *repb.Digest) (*repb.Directory, error) {
	if d.GetSizeBytes() > maxDirectory {
		return nil, status.Errorf(codes.InvalidArgument, "directory of %d bytes, at most %d", d.GetSizeBytes(), maxDirectory)
	}
	content, err := s.read(ctx, d)
	if err != nil {
		return nil, err
	}
	dir := &repb.Directory{}
	if err := proto.Unmarshal(content, dir); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "blob %s is no Directory message", d.GetHash())
	}
	return dir, nil
}

// treePage gathers directories to messages of a bounded size.
type treePage struct {
	out  repb.ContentAddressableStorage_GetTreeServer
	most int // directories; 0: as many as fit
	dirs []*repb.Directory
	size int
}

func (p *treePage) add(dir *repb.Directory) error {
	size := proto.Size(dir) + 16
	if full := p.most > 0 && len(p.dirs) >= p.most; full || p.size+size > maxBatch {
		if err := p.send(); err != nil {
			return err
		}
	}
	p.dirs, p.size = append(p.dirs, dir), p.size+size
	return nil
}

func (p *treePage) send() error {
	if len(p.dirs) == 0 {
		return nil
	}
	err := p.out.Send(&repb.GetTreeResponse{Directories: p.dirs})
	p.dirs, p.size = nil, 0
	return err
}
