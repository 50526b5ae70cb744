package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ownerLabel marks our containers and snapshots.
const ownerLabel = "skerry/owner"

// removeTimeout bounds the removal of one container.
const removeTimeout = 30 * time.Second

// createContainer writes the record, over one that an earlier daemon may have
// left of an execution that never began.
func (b *Backend) createContainer(ctx context.Context, id string, doc *specs.Spec) error {
	spec, err := typeurl.MarshalAny(doc)
	if err != nil {
		return fmt.Errorf("encode document: %w", err)
	}
	// A session keyring each would soon use up the quota of the container's root;
	// the calls that use keys are refused.
	options, err := typeurl.MarshalAny(&runcoptions.Options{NoNewKeyring: true})
	if err != nil {
		return fmt.Errorf("encode runtime options: %w", err)
	}
	record := containers.Container{ID: id, Labels: map[string]string{ownerLabel: b.config.Owner}, Spec: spec,
		Runtime: containers.RuntimeInfo{Name: b.config.Runtime, Options: options}}
	if b.config.Image != "" {
		record.Image, record.Snapshotter, record.SnapshotKey = b.config.Image, b.config.Snapshotter, id
	}
	_, err = b.client.ContainerService().Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		if err = b.remove(ctx, id); err == nil {
			_, err = b.client.ContainerService().Create(ctx, record)
		}
	}
	return err
}

// createTask makes the name spaces; nothing runs in them yet. Without paths for
// its streams they are /dev/null: init gets others from the supervisor.
func (b *Backend) createTask(ctx context.Context, id string, mounts []mount.Mount) error {
	request := &tasks.CreateTaskRequest{ContainerID: id}
	for _, m := range mounts {
		request.Rootfs = append(request.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	_, err := b.client.TaskService().Create(ctx, request)
	return native(err)
}

func (b *Backend) startTask(ctx context.Context, id string) error {
	_, err := b.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id})
	return native(err)
}

// native gives the errors of package errdefs for those of gRPC.
func native(err error) error {
	if err == nil {
		return nil
	}
	return errgrpc.ToNative(err)
}

// End removes what containerd has of an execution, and kills what still runs of
// it. It may be repeated.
func (b *Backend) End(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(b.within(ctx), removeTimeout)
	defer cancel()
	if err := b.remove(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %w", id, unavailable(err))
	}
	return nil
}

func (b *Backend) remove(ctx context.Context, id string) error {
	if err := b.removeTask(ctx, id); err != nil {
		return err
	}
	if b.config.Image != "" {
		if err := b.dropView(ctx, id); err != nil {
			return err
		}
	}
	if err := removeGroups(id); err != nil {
		return err
	}
	return absent(b.client.ContainerService().Delete(ctx, id))
}

func (b *Backend) removeTask(ctx context.Context, id string) error {
	service := b.client.TaskService()
	_, err := service.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if err = native(err); err == nil || errdefs.IsNotFound(err) || errdefs.IsUnavailable(err) {
		return absent(err)
	}
	// It runs, or containerd hasn't noticed its end; version 1.6 has no type for
	// that error.
	_, err = service.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err = absent(native(err)); err != nil {
		return err
	}
	if _, err = service.Wait(ctx, &tasks.WaitRequest{ContainerID: id}); absent(native(err)) != nil {
		return native(err)
	}
	_, err = service.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	return absent(native(err))
}

// absent is no error for what is to be removed.
func absent(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Begun tells how far Begin of an earlier daemon came for a supervisor that
// still waits. With NotBegun, Begin may be called again.
func (b *Backend) Begun(ctx context.Context, id string) (Progress, error) {
	r, err := b.client.TaskService().Get(b.within(ctx), &tasks.GetRequest{ContainerID: id})
	err = native(err)
	switch {
	case errdefs.IsNotFound(err):
		return NotBegun, nil
	case err != nil:
		return NotBegun, fmt.Errorf("look at container %s: %w", id, unavailable(err))
	case r.Process.Status == task.Status_RUNNING:
		return Running, nil
	case r.Process.Status == task.Status_STOPPED:
		return Stopped, nil
	}
	return NotBegun, nil // created alone: no init runs in it
}

// Progress of a container.
type Progress int

// What Begun tells.
const (
	NotBegun Progress = iota
	Running           // init is about to connect
	Stopped           // init ended, and will not connect
)

// Sweep removes the containers of this owner whose execution isn't live. It
// names those that could not be removed in its error, and goes on.
func (b *Backend) Sweep(ctx context.Context, live func(id string) bool) error {
	ctx = b.within(ctx)
	listing, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	all, err := b.client.ContainerService().List(listing, fmt.Sprintf("labels.%q==%q", ownerLabel, b.config.Owner))
	if err != nil {
		return fmt.Errorf("list containers: %w", unavailable(err))
	}
	var errs []error
	for _, c := range all {
		if !live(c.ID) {
			errs = append(errs, b.End(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}
