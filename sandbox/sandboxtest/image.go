package sandboxtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Image is a small OCI image made of programs of this machine.
type Image struct {
	// Programs are found in PATH and come with their libraries.
	Programs []string
	// Files and Links are paths in the image, without the first slash.
	Files map[string]string
	Links map[string]string
	// SetID are of Programs that get the set-user-id bit.
	SetID []string
	// Entries are added as they are: devices, pipes, directories.
	Entries []tar.Header
}

// Import puts the image into the namespace under a name.
func (c *Containerd) Import(namespace, name string, image Image) {
	c.t.Helper()
	archive := filepath.Join(c.dir, "image.tar")
	if err := os.WriteFile(archive, image.archive(c.t, name), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.Ctr(namespace, "images", "import", archive)
}

// archive is an OCI image layout in a tar file.
func (i Image) archive(t testing.TB, name string) []byte {
	layer := i.layer(t)
	config := map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}}}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(media string, content []byte) map[string]any {
		d := digest(content)
		files["blobs/sha256/"+strings.TrimPrefix(d, "sha256:")] = content
		return map[string]any{"mediaType": media, "digest": d, "size": len(content)}
	}
	const vendor = "application/vnd.oci.image."
	manifest := blob(vendor+"manifest.v1+json", encode(t, map[string]any{"schemaVersion": 2, "mediaType": vendor + "manifest.v1+json",
		"config": blob(vendor+"config.v1+json", encode(t, config)), "layers": []any{blob(vendor+"layer.v1.tar", layer)}}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	files["index.json"] = encode(t, map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	a := newArchive(t)
	for path, content := range files {
		a.add(tar.Header{Name: path, Mode: 0o644}, content)
	}
	return a.close()
}

func (i Image) layer(t testing.TB) []byte {
	a := newArchive(t)
	for path, target := range map[string]string{"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"} {
		a.add(tar.Header{Name: path, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
	}
	for path, target := range i.Links {
		a.add(tar.Header{Name: path, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
	}
	for path, content := range i.Files {
		a.add(tar.Header{Name: path, Mode: 0o644}, []byte(content))
	}
	for _, entry := range i.Entries {
		a.add(entry, nil)
	}
	seen := map[string]bool{}
	for _, program := range i.Programs {
		path, err := exec.LookPath(program)
		if err != nil {
			Require(t, err)
		}
		mode := int64(0o755)
		if slices.Contains(i.SetID, program) {
			mode = 0o4755
		}
		a.copy("usr/bin/"+filepath.Base(path), path, mode)
		for _, lib := range libraries(t, path) {
			if to := strings.TrimPrefix(lib, "/"); !seen[lib] {
				seen[lib] = true
				if !strings.HasPrefix(to, "usr/") {
					to = "usr/" + to
				}
				a.copy(to, lib, 0o755)
			}
		}
	}
	return a.close()
}

var absolute = regexp.MustCompile(`/[^ ]+`)

func libraries(t testing.TB, program string) []string {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", program, err)
	}
	return absolute.FindAllString(string(out), -1)
}

type archive struct {
	t testing.TB
	b bytes.Buffer
	w *tar.Writer
}

func newArchive(t testing.TB) *archive {
	a := &archive{t: t}
	a.w = tar.NewWriter(&a.b)
	return a
}

func (a *archive) add(h tar.Header, content []byte) {
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	h.Size = int64(len(content))
	if err := a.w.WriteHeader(&h); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.w.Write(content); err != nil {
		a.t.Fatal(err)
	}
}

func (a *archive) copy(to, from string, mode int64) {
	content, err := fs.ReadFile(os.DirFS("/"), strings.TrimPrefix(resolved(a.t, from), "/"))
	if err != nil {
		a.t.Fatal(err)
	}
	a.add(tar.Header{Name: to, Mode: mode}, content)
}

func resolved(t testing.TB, path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

func (a *archive) close() []byte {
	if err := a.w.Close(); err != nil {
		a.t.Fatal(err)
	}
	return a.b.Bytes()
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encode(t testing.TB, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(fmt.Errorf("encode image: %w", err))
	}
	return b
}
