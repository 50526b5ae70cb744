package containerd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"
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
	if err := b.clearWork(ctx, snapshotter); err != nil {
		return fmt.Errorf("clear what an earlier daemon left: %w", unavailable(err))
	}
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
	text, err := json.Marshal([]any{chain, b.config.MountPoints, b.config.Files, b.config.Links, b.config.Append, b.config.Init})
	if err != nil {
		return "", fmt.Errorf("name the image's root: %w", err)
	}
	sum := sha256.Sum256(text)
	return rootPrefix + hex.EncodeToString(sum[:16]), nil
}

// keep makes containerd's collector leave a snapshot alone.
func (b *Backend) keep() snapshots.Opt {
	return snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "skerry", ownerLabel: b.config.Owner})
}

// Names of what is there only while a root is prepared.
const (
	workInfix  = "-work-"
	workDirs   = ".image-"
	rootPrefix = "skerry-root-"
)

// clearWork removes what a daemon that was killed while it prepared a root left:
// its mount, and its snapshot, which containerd would keep for ever.
func (b *Backend) clearWork(ctx context.Context, s snapshots.Snapshotter) error {
	dirs, err := filepath.Glob(filepath.Join(b.config.TempDir, workDirs+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: not mounted
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	var left []string
	note := func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindActive && strings.HasPrefix(info.Name, rootPrefix) && strings.Contains(info.Name, workInfix) {
			left = append(left, info.Name)
		}
		return nil
	}
	if err := s.Walk(ctx, note, fmt.Sprintf("labels.%q==%q", ownerLabel, b.config.Owner)); err != nil {
		return err
	}
	for _, name := range left {
		if err := absent(s.Remove(ctx, name)); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) commitRoot(ctx context.Context, s snapshots.Snapshotter, key, chain string) (err error) {
	work := key + workInfix + strings.ToLower(rand.Text()) // two daemons may do this at once
	mounts, err := s.Prepare(ctx, work, chain, b.keep())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, absent(s.Remove(context.WithoutCancel(ctx), work)))
		}
	}()
	dir, err := os.MkdirTemp(b.config.TempDir, workDirs)
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
	top, err := root.Stat(".")
	if err == nil {
		err = letThrough(root, ".", top)
	}
	if err != nil {
		return fmt.Errorf("root directory: %w", err)
	}
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
	for _, name := range slices.Sorted(maps.Keys(b.config.Links)) {
		if err := replaceLink(root, name, b.config.Links[name]); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
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
// mounts there. A link, or whatever else the image has in its place, goes, and
// every user gets through.
func makeDir(root *os.Root, name string) error {
	done := ""
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		done = path.Join(done, part)
		info, err := root.Lstat(done)
		if err == nil && info.IsDir() {
			if err := letThrough(root, done, info); err != nil {
				return err
			}
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

// letThrough: the sandbox's user passes the directory whoever owns it.
func letThrough(root *os.Root, name string, info fs.FileInfo) error {
	if info.Mode()&0o555 == 0o555 {
		return nil
	}
	return root.Chmod(name, info.Mode()&(fs.ModePerm|fs.ModeSticky)|0o755)
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

func replaceLink(root *os.Root, name, target string) error {
	name = strings.TrimPrefix(name, "/")
	if err := makeDir(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	return root.Symlink(target, name)
}

// maxAppended bounds what the image may have in a file that lines are added to.
const maxAppended = 1 << 20

// readText gives the text of a file of the image, by way of the image's links,
// and nothing for what is no file: a pipe would never end, and a device is the
// host's.
func readText(root *os.Root, name string) (string, error) {
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil //nolint:nilerr // nothing there, or a link that leads out
	}
	if info.Size() > maxAppended {
		return "", fmt.Errorf("it is over %d bytes in the image", maxAppended)
	}
	text, err := root.ReadFile(name)
	return string(text), err
}

// appendTo adds, in front, the lines whose first field, up to a colon, the file
// lacks: who looks a number up finds ours first.
func appendTo(root *os.Root, name, lines string) error {
	name = strings.TrimPrefix(name, "/")
	old, err := readText(root, name)
	if err != nil {
		return err
	}
	text := strings.TrimRight(old, "\n")
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
