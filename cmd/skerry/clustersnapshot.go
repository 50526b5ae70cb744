package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protodelim"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// snapshotMagic begins a file that holds a saved state: then its SnapshotInfo,
// length-delimited, and the data.
const snapshotMagic = "skerry-snapshot-1\n"

const snapshotChunk = 256 << 10

func (a *app) clusterSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "snapshot FILE", Short: "Save the cluster's whole state to a file", Args: cobra.ExactArgs(1),
		Long: "Save the cluster's whole state to a file. It holds no files of workspaces, but the hashes of\n" +
			"tokens and the key of the cluster's authority: keep it as a secret.",
		Example: "  skerry cluster snapshot /backup/skerry-$(date +%F).snapshot",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			info, err := saveSnapshot(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(info)
			}
			_, err = fmt.Fprintf(a.stdout, "%s: state of cluster %s up to entry %d, %d bytes\n", args[0], info.ClusterId, info.Index, info.Size)
			return err
		},
	}
}

// saveSnapshot replaces path once all has arrived and its checksum is right.
func saveSnapshot(ctx context.Context, c *clients, path string) (info *skerryv1.SnapshotInfo, err error) {
	stream, err := c.cluster.SaveSnapshot(ctx, connect.NewRequest(&skerryv1.SaveSnapshotRequest{}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	out, err := os.CreateTemp(filepath.Dir(path), ".skerry-snapshot-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close(), os.Remove(out.Name()))
		}
	}()
	if info, err = writeSnapshot(out, stream); err != nil {
		return nil, err
	}
	if err := out.Sync(); err != nil {
		return nil, err
	}
	return info, errors.Join(out.Close(), os.Rename(out.Name(), path))
}

func writeSnapshot(out io.Writer, stream *connect.ServerStreamForClient[skerryv1.SaveSnapshotResponse]) (*skerryv1.SnapshotInfo, error) {
	var info *skerryv1.SnapshotInfo
	sum := sha256.New()
	for stream.Receive() {
		if header := stream.Msg().GetInfo(); header != nil && info == nil {
			info = header
			if _, err := io.WriteString(out, snapshotMagic); err != nil {
				return nil, err
			}
			if _, err := protodelim.MarshalTo(out, info); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := io.MultiWriter(out, sum).Write(stream.Msg().GetData()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if info == nil || !bytes.Equal(sum.Sum(nil), info.GetSha256()) {
		return nil, errors.New("the snapshot arrived damaged; save it again")
	}
	return info, nil
}

func (a *app) clusterRestore() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "Replace the cluster's whole state by a saved one", Args: cobra.ExactArgs(1),
		Long: "Replace agents, tokens, runners, workspaces, transfers, timers and inboxes of the whole cluster\n" +
			"by those of a file that \"skerry cluster snapshot\" wrote. Changes since then are lost. The\n" +
			"coordinators, the cluster's name, its authority and certificates stay as they are.",
		Example: "  skerry cluster restore /backup/skerry-2026-01-31.snapshot",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := restoreSnapshot(cmd.Context(), c, args[0], force)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			_, err = fmt.Fprintf(a.stdout, "restored, at entry %d\n", res.Index)
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also when the file is of another cluster")
	return c
}

func restoreSnapshot(ctx context.Context, c *clients, path string, force bool) (*skerryv1.RestoreSnapshotResponse, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	in := bufio.NewReaderSize(file, snapshotChunk)
	info, err := readSnapshotInfo(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	stream := c.cluster.RestoreSnapshot(ctx)
	err = stream.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Start{Start: &skerryv1.RestoreStart{Info: info, Force: force}}})
	chunk := make([]byte, snapshotChunk)
	for err == nil {
		var n int
		n, err = io.ReadFull(in, chunk)
		if n > 0 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)) {
			err = errors.Join(stream.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Data{Data: chunk[:n]}}), err)
		}
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		_, _ = stream.CloseAndReceive()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	// Where the coordinator has refused, its answer says why.
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func readSnapshotInfo(in *bufio.Reader) (*skerryv1.SnapshotInfo, error) {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != snapshotMagic {
		return nil, errors.New("is no snapshot that \"skerry cluster snapshot\" wrote")
	}
	info := &skerryv1.SnapshotInfo{}
	if err := (protodelim.UnmarshalOptions{MaxSize: 64 << 10}).UnmarshalFrom(in, info); err != nil {
		return nil, fmt.Errorf("its header is damaged: %w", err)
	}
	return info, nil
}
