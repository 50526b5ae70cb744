package containerd

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	"skerry.internal/sandbox/document"
	"skerry.internal/sandbox/seccomp"
	"skerry.internal/sandbox/supervisor"
)

// Config says which containerd makes sandboxes, and of what.
type Config struct {
	// Address of its socket, an absolute path.
	Address string
	// Namespace of containerd that the containers are in.
	Namespace string
	// Runtime is the name of its runtime, such as io.containerd.runc.v2.
	Runtime string
	// Owner tells the containers of one daemon from those of others that use the
	// same namespace.
	Owner string
	// Image, if not empty, is the name of an image of the namespace that gives
	// the root file system; the document's own root otherwise.
	Image string
	// Snapshotter unpacks and mounts Image.
	Snapshotter string
	// RootUID and RootGID are what the container's root is on the host: an
	// unprivileged user that no agent has. runc can't do without a root.
	RootUID, RootGID uint32
	// Init is where the document mounts runnerd-shim, and ControlDir where the
	// execution's supervisor is to be found.
	Init, ControlDir string
	// System are directories of the host that the document shows at their own
	// paths; they are left out if there is an image.
	System []string
	// MountPoints are made in the image's root where it lacks them; Files and
	// Links replace what it has of their names. Append are lines added to files.
	MountPoints []string
	Files       map[string]string
	Links       map[string]string
	Append      map[string]string
	// TempDir is where the image's root is mounted to do so.
	TempDir string

	serverUID uint32 // who must serve the socket: root; for tests
}

// Defaults of Config.
const (
	DefaultAddress     = "/run/containerd/containerd.sock"
	DefaultNamespace   = "skerry"
	DefaultRuntime     = "io.containerd.runc.v2"
	DefaultSnapshotter = "overlayfs"
)

// Backend makes sandboxes with one containerd. It is safe for concurrent use,
// and needs no connection until it is used: it finds a restarted containerd again.
type Backend struct {
	config  Config
	client  *client.Client
	filters *seccomp.Compiler
	root    string // committed snapshot of the image, "" without one
}

// New makes a backend; Prepare must come before its first sandbox. Close it.
func New(config Config) (*Backend, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return dialSocket(ctx, config.Address, config.serverUID)
	}
	c, err := client.New(config.Address, client.WithDefaultNamespace(config.Namespace), client.WithDefaultRuntime(config.Runtime),
		client.WithTimeout(connectTimeout), client.WithExtraDialOpts([]grpc.DialOption{grpc.WithContextDialer(dial)}))
	if err != nil {
		return nil, unavailable(err)
	}
	return &Backend{config: config, client: c, filters: seccomp.NewCompiler(runtime.GOARCH)}, nil
}

// Close ends the connection. Sandboxes go on.
func (b *Backend) Close() error { return b.client.Close() }

// within sets the namespace, which the client wants in every context.
func (b *Backend) within(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, b.config.Namespace)
}

// Command gives the supervisor's orders for the document: to wait for a sandbox.
// The working directory and the environment go to the supervisor, so that
// containerd's state on disk has none of an agent's values.
func (b *Backend) Command(doc *specs.Spec) (supervisor.Spec, error) {
	var out supervisor.Spec
	if err := check(doc); err != nil {
		return out, err
	}
	place := []string{supervisor.Literal(doc.Process.Cwd)}
	for _, pair := range doc.Process.Env {
		place = append(place, supervisor.Literal(pair))
	}
	out.Launch = supervisor.LaunchConnect
	out.Files = []supervisor.FileArg{{Name: supervisor.PlaceFile, Args: place}}
	if doc.Linux.Seccomp != nil {
		program, err := b.filters.Program(doc.Linux.Seccomp)
		if err != nil {
			return out, err
		}
		out.Files = append(out.Files, supervisor.FileArg{Name: supervisor.FilterFile, Data: program})
	}
	out.Limits = document.Limits(doc)
	out.Credential = &supervisor.Credential{UID: doc.Linux.UIDMappings[0].HostID, GID: doc.Linux.GIDMappings[0].HostID}
	return out, nil
}

// Begin makes the sandbox of the document for the execution id, whose supervisor
// waits in dir. ready is called before anything of it runs, and returns when the
// supervisor listens. After a failure, which does not say whether init runs, End
// is due, unless the supervisor says that the execution has begun.
func (b *Backend) Begin(ctx context.Context, id, dir string, doc *specs.Spec, ready func(context.Context) error) error {
	ctx = b.within(ctx)
	adapted, err := b.adapt(id, dir, doc)
	if err != nil {
		return err
	}
	if err := b.begin(ctx, id, doc.Root.Path, adapted, ready); err != nil {
		return fmt.Errorf("start container %s: %w", id, unavailable(err))
	}
	return nil
}

func (b *Backend) begin(ctx context.Context, id, rootfs string, doc *specs.Spec, ready func(context.Context) error) error {
	if err := b.createContainer(ctx, id, doc); err != nil {
		return err
	}
	mounts := []mount.Mount{{Type: "bind", Source: rootfs, Options: []string{"rbind", "ro", "nosuid", "nodev"}}}
	if b.config.Image != "" {
		var err error
		if mounts, err = b.viewOfImage(ctx, id); err != nil {
			return err
		}
	}
	if err := b.createTask(ctx, id, mounts); err != nil {
		return err
	}
	if err := ready(ctx); err != nil {
		return err
	}
	return b.startTask(ctx, id)
}
