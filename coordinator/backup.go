package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// Bytes of a snapshot in one message.
	backupChunk = 256 << 10
	// Bytes that a snapshot to restore may have.
	maxBackup      = 16 << 30
	restoreTimeout = 10 * time.Minute
)

// SaveSnapshot implements ClusterServiceHandler.
func (s clusterService) SaveSnapshot(ctx context.Context, _ *connect.Request[skerryv1.SaveSnapshotRequest], out *connect.ServerStream[skerryv1.SaveSnapshotResponse]) error {
	id, err := s.c.takeSnapshot(ctx)
	if err != nil {
		return err
	}
	info, data, err := s.c.describe(id)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	if err := out.Send(&skerryv1.SaveSnapshotResponse{Part: &skerryv1.SaveSnapshotResponse_Info{Info: info}}); err != nil {
		return err
	}
	chunk := make([]byte, backupChunk)
	for {
		n, err := io.ReadFull(data, chunk)
		if n > 0 {
			if err := out.Send(&skerryv1.SaveSnapshotResponse{Part: &skerryv1.SaveSnapshotResponse_Data{Data: chunk[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
	}
}

// takeSnapshot makes a snapshot of all that is applied, or finds it made, and
// gives the newest one's id.
func (c *Coordinator) takeSnapshot(ctx context.Context) (string, error) {
	if err := c.settle(ctx); err != nil {
		return "", err
	}
	err := wait(ctx, c.node.raft.Snapshot())
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return "", problem.New(connect.CodeUnavailable, problem.StoreFailed, "repeat the call; if it persists, look at the coordinator's disk",
			"no snapshot could be taken").Retry().Because(err)
	}
	list, err := c.node.snapshots.List()
	if err != nil || len(list) == 0 {
		return "", fmt.Errorf("list snapshots: %w", errors.Join(err, errors.New("there is none")))
	}
	return list[0].ID, nil
}

// settle waits until all that is in the log so far is committed and applied: Raft
// neither takes nor restores a snapshot while a change of its configuration is
// under way.
func (c *Coordinator) settle(ctx context.Context) error {
	if err := wait(ctx, c.node.raft.Barrier(recoveryTimeout)); err != nil {
		return notLeader("this coordinator could not settle its log").Because(err)
	}
	return nil
}

// describe reads a snapshot once for its checksum. data is the same from its
// start; the caller closes it.
func (c *Coordinator) describe(id string) (info *skerryv1.SnapshotInfo, data io.ReadCloser, err error) {
	meta, first, err := c.node.snapshots.Open(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w", err)
	}
	defer func() { _ = first.Close() }()
	// Now, as it may be replaced by newer ones while it is read.
	_, data, err = c.node.snapshots.Open(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w", err)
	}
	sum := sha256.New()
	size, err := io.Copy(sum, first)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read snapshot: %w", err), data.Close())
	}
	return &skerryv1.SnapshotInfo{ClusterId: c.ClusterID(), Index: meta.Index, Term: meta.Term, Size: uint64(size),
		Sha256: sum.Sum(nil), Created: timestamppb.Now(), Version: c.version}, data, nil
}

// RestoreSnapshot implements ClusterServiceHandler.
func (s clusterService) RestoreSnapshot(ctx context.Context, in *connect.ClientStream[skerryv1.RestoreSnapshotRequest]) (*connect.Response[skerryv1.RestoreSnapshotResponse], error) {
	start, err := firstPart(in)
	if err != nil {
		return nil, err
	}
	info := start.GetInfo()
	if own := s.c.ClusterID(); info.GetClusterId() != own && !start.GetForce() {
		return nil, problem.Invalid("start.info.clusterId", "restore a snapshot of this cluster, or insist with --force",
			"the snapshot is of cluster %.64q, this is %q", info.GetClusterId(), own)
	}
	spool, err := os.CreateTemp(s.c.cfg.DataDir, ".restore-*")
	if err != nil {
		return nil, fmt.Errorf("spool snapshot: %w", err)
	}
	defer func() {
		_ = spool.Close()
		_ = os.Remove(spool.Name())
	}()
	if err := receive(in, info, spool); err != nil {
		return nil, err
	}
	index, err := s.c.restore(ctx, spool, info)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RestoreSnapshotResponse{Index: index}), nil
}

func firstPart(in *connect.ClientStream[skerryv1.RestoreSnapshotRequest]) (*skerryv1.RestoreStart, error) {
	if !in.Receive() {
		return nil, errors.Join(in.Err(), problem.Invalid("start", "send it in the first message", "is missing"))
	}
	start := in.Msg().GetStart()
	if start.GetInfo() == nil {
		return nil, problem.Invalid("start.info", "send it in the first message", "is missing")
	}
	if start.GetInfo().GetSize() > maxBackup {
		return nil, problem.Limit("start.info.size", "17179869184 bytes", "restore a smaller snapshot")
	}
	return start, nil
}

// receive writes the data to spool and compares it with what info says.
func receive(in *connect.ClientStream[skerryv1.RestoreSnapshotRequest], info *skerryv1.SnapshotInfo, spool io.Writer) error {
	sum, left := sha256.New(), info.GetSize()
	for in.Receive() {
		data := in.Msg().GetData()
		if uint64(len(data)) > left {
			return damaged("it is longer than its header says")
		}
		left -= uint64(len(data))
		if _, err := io.MultiWriter(sum, spool).Write(data); err != nil {
			return fmt.Errorf("spool snapshot: %w", err)
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	return checkSum(info, left, sum)
}

func checkSum(info *skerryv1.SnapshotInfo, left uint64, sum hash.Hash) error {
	if left != 0 {
		return damaged("it is shorter than its header says")
	}
	if !bytes.Equal(sum.Sum(nil), info.GetSha256()) {
		return damaged("its checksum differs")
	}
	return nil
}

func damaged(why string) *problem.Error {
	return problem.New(connect.CodeInvalidArgument, problem.SnapshotDamaged, "use another snapshot", "the snapshot is damaged: %s", why)
}

// restore makes the spooled snapshot the state of the whole cluster. Leadership
// begins anew with it, so that nothing rests on the state before.
func (c *Coordinator) restore(ctx context.Context, spool *os.File, info *skerryv1.SnapshotInfo) (uint64, error) {
	unlock, err := c.membership.lock(ctx, "")
	if err != nil {
		return 0, err
	}
	defer unlock()
	fit, size, err := c.refit(spool)
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = fit.Close()
		_ = os.Remove(fit.Name())
	}()
	if err := c.settle(ctx); err != nil {
		return 0, err
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: info.GetIndex(), Term: info.GetTerm(), Size: size}
	c.logger.WarnContext(ctx, "the state is being replaced by a snapshot", "cluster", info.GetClusterId(), "index", info.GetIndex())
	if err := c.node.raft.Restore(meta, fit, restoreTimeout); err != nil {
		return 0, raftProblem(err)
	}
	index := c.node.raft.LastIndex()
	select {
	case c.restart <- struct{}{}:
	default:
	}
	return index, nil
}

// refit writes the state of the snapshot, which is checked by that, so that it
// fits this cluster.
func (c *Coordinator) refit(spool *os.File) (*os.File, int64, error) {
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return nil, 0, fmt.Errorf("spool snapshot: %w", err)
	}
	scratch := state.NewReplicating(false)
	if err := scratch.Restore(spool); err != nil {
		return nil, 0, damaged(err.Error())
	}
	if err := scratch.KeepCluster(c.state.Read()); err != nil {
		return nil, 0, err
	}
	out, err := os.CreateTemp(filepath.Dir(spool.Name()), ".restore-*")
	if err != nil {
		return nil, 0, fmt.Errorf("spool snapshot: %w", err)
	}
	size, err := scratch.Snapshot().WriteTo(out)
	if err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("spool snapshot: %w", err), out.Close(), os.Remove(out.Name()))
	}
	return out, size, nil
}
