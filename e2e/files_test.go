package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (c *client) upload(t testing.TB, h *skerryv1.UploadHeader, content []byte) (*skerryv1.UploadFileResponse, error) {
	t.Helper()
	s := c.files.UploadFile(t.Context())
	_ = s.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: h}})
	for len(content) > 0 {
		n := min(len(content), 1<<20)
		if s.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: content[:n]}}) != nil {
			break // the answer says why
		}
		content = content[n:]
	}
	res, err := s.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (c *client) download(t testing.TB, path string) ([]byte, error) {
	t.Helper()
	s, err := c.files.DownloadFile(t.Context(), connect.NewRequest(&skerryv1.DownloadFileRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var out []byte
	for s.Receive() {
		out = append(out, s.Msg().GetData()...)
	}
	return out, s.Err()
}

func TestUploadDownload(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	content := make([]byte, 5<<20+17)
	_, _ = rand.Read(content)
	sum := sha256.Sum256(content)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	res, err := c.upload(t, &skerryv1.UploadHeader{Path: "big.bin", Digest: digest}, content)
	if err != nil || res.File.Digest != digest || res.BytesWritten != uint64(len(content)) {
		t.Fatalf("upload: %v %v", res, err)
	}
	got, err := c.download(t, "big.bin")
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("download: %d bytes, %v", len(got), err)
	}
	e := c.sh(t, "sha256sum big.bin | cut -d' ' -f1")
	if e.Stdout.Text != hex.EncodeToString(sum[:])+"\n" {
		t.Fatalf("the sandbox sees %q", e.Stdout.Text)
	}
	_, err = c.upload(t, &skerryv1.UploadHeader{Path: "other", Digest: digest}, []byte("wrong"))
	if p := problem.Of(err); p.GetReason() != problem.DigestMismatch {
		t.Fatalf("wrong digest: %v", err)
	}
	page, err := c.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: "big.bin"}))
	if err != nil || !page.Msg.Binary || page.Msg.Text != "" || page.Msg.File.Digest != digest {
		t.Fatalf("read of a binary file: %v %v", page, err)
	}
}

// F17: whatever is named, every call answers with a typed error and nothing
// outside is read or written.
func TestF17HostilePathsAreRefused(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	wantState(t, c.sh(t, `ln -s /etc/passwd abs; ln -s ../../../../../../etc/passwd up; ln -s /etc dir; ln -s loop loop; mkfifo fifo; ln -s / root; mkdir d; ln -s . self`), "completed", "exited")
	hostile := []string{"/etc/passwd", "../x", "a/../../x", "abs", "up", "dir/passwd", "loop/x", "root/etc/passwd", "a\x00b",
		strings.Repeat("x/", 2500) + "y", strings.Repeat("n", 300), "fifo", "d", "self/self/abs", "/proc/self/environ", ".."}
	for _, p := range hostile {
		t.Run(fmt.Sprintf("%.30q", p), func(t *testing.T) {
			if _, err := c.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: p})); problem.Of(err) == nil {
				t.Errorf("read: %v", err)
			}
			if _, err := c.download(t, p); problem.Of(err) == nil {
				t.Errorf("download: %v", err)
			}
			_, err := c.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Path: p, IfExists: "overwrite", Content: &skerryv1.WriteFileRequest_Text{Text: "x"}}))
			if problem.Of(err) == nil {
				t.Errorf("write: %v", err)
			}
			if _, err := c.upload(t, &skerryv1.UploadHeader{Path: p, IfExists: "overwrite"}, []byte("x")); problem.Of(err) == nil {
				t.Errorf("upload: %v", err)
			}
		})
	}
	list, err := c.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Recursive: true}))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list.Msg.Files {
		if strings.Contains(f.Path, "passwd") {
			t.Errorf("the list follows a link: %v", f)
		}
	}
}

// A directory is swapped for a symlink to the outside in a loop by the running
// command while file calls go on.
func TestF17SwapWhileItRuns(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	c.write(t, "d/f", "inside")
	e := c.start(t, `ln -s /etc l; echo ready; i=0; while [ $i -lt 4000 ]; do mv d x; mv l d; mv d l; mv x d; i=$((i+1)); done`, nil)
	d.eventually("it swaps", func() bool { return c.log(t, e.Id, "") == "ready\n" })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				res, err := c.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: "d/f"}))
				if err != nil || res.Msg.Text != "inside" {
					t.Errorf("read: %v %v", res, err)
					return
				}
				if _, err := c.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: "d/passwd"})); err == nil {
					t.Error("a read went outside")
					return
				}
			}
		})
	}
	wg.Wait()
	wantState(t, c.wait(t, e.Id), "completed", "exited")
}

func TestAWriteWaitsForTheWorkspaceAndSaysSo(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, "sleep 300", nil)
	began := time.Now()
	_, err := c.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Path: "f", Content: &skerryv1.WriteFileRequest_Text{Text: "x"}}))
	p := problem.Of(err)
	if p.GetReason() != problem.WorkspaceBusy || !p.Retryable || p.Remedy == "" {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	if _, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id})); err != nil {
		t.Fatal(err)
	}
	c.write(t, "f", "x")
}

// I4: a reader sees the last committed state while a command writes.
func TestI4ReadersSeeCommittedState(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	c.write(t, "f", "old")
	e := c.start(t, "echo -n new > f; echo written; sleep 300", nil)
	d.eventually("it wrote", func() bool { return c.log(t, e.Id, "") == "written\n" })
	if got := c.read(t, "f"); got != "old" {
		t.Fatalf("a reader saw %q", got)
	}
	if _, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id})); err != nil {
		t.Fatal(err)
	}
	c.wait(t, e.Id)
	if got := c.read(t, "f"); got != "new" {
		t.Fatalf("after the end: %q", got)
	}
}

// F27: the zoo that a command can leave behind.
func TestF27Zoo(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.sh(t, `/usr/bin/python3 - <<'P'
import os, socket
for i in range(10000):
    p = "many/%02d" % (i % 100); os.makedirs(p, exist_ok=True); open("%s/%d" % (p, i), "w").write(str(i))
open(b"caf\xe9", "w").write("latin1")
os.mkfifo("fifo"); s = socket.socket(socket.AF_UNIX); s.bind("sock")
os.symlink("nowhere", "dangling"); os.symlink("/etc/passwd", "outward")
open("a", "w").write("linked"); os.link("a", "b")
f = open("sparse", "wb"); f.truncate(1 << 30); f.seek(1 << 29); f.write(b"x"); f.close()
open("secret", "w").write("s"); os.chmod("secret", 0)
os.mkdir("closed"); open("closed/x", "w").write("x"); os.chmod("closed", 0)
d = b"."
for i in range(30): d += b"/" + b"n" * 200; os.mkdir(d) if len(d) < 4000 else None
P`)
	wantState(t, e, "completed", "exited")
	if e.Changes.CreatedCount < 10000 || len(e.Changes.Created) == 0 || !e.Changes.Truncated {
		t.Errorf("changes: %d", e.Changes.CreatedCount)
	}
	kinds := map[string]string{}
	for _, s := range e.Snapshot.Skipped {
		kinds[s.Path] = s.Kind
	}
	if kinds["fifo"] != "fifo" || kinds["sock"] != "socket" {
		t.Errorf("skipped: %v", kinds)
	}
	again := c.sh(t, "true")
	if again.Snapshot.Digest != e.Snapshot.Digest {
		t.Error("nothing changed, yet the snapshot did")
	}
	e = c.sh(t, "chmod 700 closed; rm -rf many closed; ls | wc -l")
	wantState(t, e, "completed", "exited")
	if e.Changes.DeletedCount < 10000 {
		t.Errorf("deleted: %d", e.Changes.DeletedCount)
	}
}

// A second header is refused: which of the two would hold is not for us to guess.
func TestUploadTakesOneHeader(t *testing.T) {
	d := newDev(t)
	c, _ := d.agent("a")
	stream := c.files.UploadFile(t.Context())
	for range 2 {
		_ = stream.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: &skerryv1.UploadHeader{Path: "f"}}})
	}
	if _, err := stream.CloseAndReceive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("two headers: %v", err)
	}
}
