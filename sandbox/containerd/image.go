package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
)

// Prepare makes the image ready, if there is one: unpacked, and with the mount
// points and files that a sandbox needs in a committed snapshot of its own, of
// which each execution gets a read-only view.
func (b *Backend) Prepare(ctx context.Context) error {
	if b.config.Image == "" {
		return nil
	}
	ctx = b.within(ctx)
	chain, err := b.unpack(ctx)
	if err != nil {
		return err
	}
	key, err := b.rootName(chain)
	if err != nil {
		return err
	}
	snapshotter := b.client.SnapshotService(b.config.Snapshotter)
	if _, err := snapshotter.Stat(ctx, key); err == nil {
		b.root = key
		return nil
	} else if !errdefs.IsNotFound(err) {
		return fmt.Errorf("look for the image's root: %w", unavailable(err))
	}
	if err := b.commitRoot(ctx, snapshotter, key, chain); err != nil {
		return fmt.Errorf("prepare image %s: %w", b.config.Image, unavailable(err))
	}
	b.root = key
	return nil
}

// unpack gives the name of the snapshot of all the image's layers.
func (b *Backend) unpack(ctx context.Context) (string, error) {
	image, err := b.client.GetImage(ctx, b.config.Image)
	if errdefs.IsNotFound(err) {
		return "", &UnavailableError{fmt.Sprintf("it has no image %q in the namespace %q", b.config.Image, b.config.Namespace),
			fmt.Sprintf("ctr --namespace %s images pull %s (or import)", b.config.Namespace, b.config.Image), err}
	}
	if err != nil {
		return "", fmt.Errorf("look for image: %w", unavailable(err))
	}
	done, err := image.IsUnpacked(ctx, b.config.Snapshotter)
	if err == nil && !done {
		err = image.Unpack(ctx, b.config.Snapshotter)
	}
	if err != nil {
		return "", &UnavailableError{"the image can't be unpacked: " + err.Error(), "look at the snapshotter (sandbox.containerd.snapshotter), and pull the image again", err}
	}
	layers, err := image.RootFS(ctx)
	if err != nil {
		return "", fmt.Errorf("read image: %w", unavailable(err))
	}
	return identity.ChainID(layers).String(), nil
}

// rootName changes with the image and with all that is added to it.
func (b *Backend) rootName(chain string) (string, error) {
	text, err := json.Marshal([]any{chain, b.config.MountPoints, b.config.Files, b.config.Append, b.config.Init})
	if err != nil {
		return "", fmt.Errorf("name the image's root: %w", err)
	}
	sum := sha256.Sum256(text)
	return "skerry-root-" + hex.EncodeToString(sum[:16]), nil
}

// keep makes containerd's collector leave a snapshot alone.
func (b *Backend) keep() snapshots.Opt {
	return snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "skerry", ownerLabel: b.config.Owner})
}

func (b *Backend) commitRoot(ctx context.Context, s snapshots.Snapshotter, key, chain string) (err error) {
	work := key + "-work"
	if err := absent(s.Remove(ctx, work)); err != nil {
		return err
	}
	mounts, err := s.Prepare(ctx, work, chain, b.keep())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, absent(s.Remove(ctx, work)))
		}
	}()
	dir, err := os.MkdirTemp(b.config.TempDir, ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := mount.All(mounts, dir); err != nil {
		return err
	}
	err = b.furnish(dir)
	if err = errors.Join(err, mount.Unmount(dir, 0)); err != nil {
		return err
	}
	err = s.Commit(ctx, key, work, b.keep())
	if errdefs.IsAlreadyExists(err) { // another daemon was quicker
		return s.Remove(ctx, work)
	}
	return err
}

// furnish adds what is missing. The image's links lead nowhere but into itself.
func (b *Backend) furnish(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, point := range b.config.MountPoints {
		if err := makeDir(root, point); err != nil {
			return fmt.Errorf("mount point %s: %w", point, err)
		}
	}
	files := maps.Clone(b.config.Files)
	if files == nil {
		files = map[string]string{}
	}
	files[b.config.Init] = ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := replaceFile(root, name, files[name]); err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.config.Append)) {
		if err := appendTo(root, name, b.config.Append[name]); err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
	}
	return nil
}

// makeDir makes a directory that is one all the way, not by way of links: runc
// mounts there. A link, or whatever else the image has in its place, goes.
func makeDir(root *os.Root, name string) error {
	done := ""
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		done = path.Join(done, part)
		info, err := root.Lstat(done)
		if err == nil && info.IsDir() {
			continue
		}
		if err == nil {
			err = root.Remove(done)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := errors.Join(root.Mkdir(done, 0o755), root.Chmod(done, 0o755)); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

func replaceFile(root *os.Root, name, content string) error {
	name = strings.TrimPrefix(name, "/")
	if err := makeDir(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	return errors.Join(root.WriteFile(name, []byte(content), 0o644), root.Chmod(name, 0o644))
}

// appendTo adds, in front, the lines whose first field, up to a colon, the file
// lacks: who looks a number up finds ours first.
func appendTo(root *os.Root, name, lines string) error {
	name = strings.TrimPrefix(name, "/")
	old, err := root.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := strings.TrimRight(string(old), "\n")
	for line := range strings.Lines(lines) {
		field, _, _ := strings.Cut(line, ":")
		if strings.HasPrefix(text, field+":") || strings.Contains(text, "\n"+field+":") {
			continue
		}
		text = strings.TrimRight(line, "\n") + "\n" + text
	}
	return replaceFile(root, name, strings.TrimRight(text, "\n")+"\n")
}

// viewOfImage is the execution's own read-only snapshot.
func (b *Backend) viewOfImage(ctx context.Context, id string) ([]mount.Mount, error) {
	s := b.client.SnapshotService(b.config.Snapshotter)
	mounts, err := s.View(ctx, id, b.root, b.keep())
	if errdefs.IsAlreadyExists(err) {
		if err = absent(s.Remove(ctx, id)); err == nil {
			mounts, err = s.View(ctx, id, b.root, b.keep())
		}
	}
	if errdefs.IsNotFound(err) {
		return nil, &UnavailableError{"the prepared root of the image was removed", "restart the daemon, which prepares it again", err}
	}
	for i := range mounts { // whatever devices and set-id programs the image has
		mounts[i].Options = append(mounts[i].Options, "nosuid", "nodev")
	}
	return mounts, err
}

func (b *Backend) dropView(ctx context.Context, id string) error {
	return absent(b.client.SnapshotService(b.config.Snapshotter).Remove(ctx, id))
}
