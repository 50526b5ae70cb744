package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry.internal/sandbox/diskquota"
	"skerry.internal/sandbox/sandboxtest"
)

// A command that fills its workspace is stopped while it runs, and told why.
func TestQuotaStopsBombs(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		script string
		quota  Quota
		limit  string // empty: it may go on
	}{
		"disk bomb":      {"while :; do head -c 1M /dev/zero >> big; sleep 0.01; done", Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"many files":     {"i=0; while :; do i=$((i+1)); head -c 300K /dev/zero > $i; done", Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"inode bomb":     {"i=0; while :; do i=$((i+1)); : > $i; [ $((i % 200)) != 0 ] || sleep 0.01; done", Quota{Entries: 2000}, "workspace_entries"},
		"directories":    {"i=0; while :; do i=$((i+1)); mkdir -p a$i/b/c/d; done", Quota{Entries: 1000}, "workspace_entries"},
		"reserved space": {"for i in 1 2 3 4 5; do : > f$i; fallocate -n -l 10485760 f$i || exit 3; done; sleep 20", Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"files without a name": {`exec python3 -c 'import os, time
f = open("x", "wb"); os.unlink("x")
for i in range(800): f.write(b"x" * (1 << 20)); f.flush(); time.sleep(.02)'`, Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"mapped without a name": {`exec python3 -c 'import os, time, mmap
for i in range(100):
    f = open("x", "w+b"); os.unlink("x"); f.truncate(1 << 21); m = mmap.mmap(f.fileno(), 0); m[:] = b"x" * (1 << 21); globals()["m%d" % i] = m; f.close(); time.sleep(.1)'`, Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"inherited, counted once": {`rm old; sleep 1.2; exec 9>x; rm x; head -c 5M /dev/zero >&9; for i in 1 2 3 4 5 6 7 8; do sleep 2.5 & done; wait`, Quota{Bytes: 20 * mib, UsedBytes: 16 * mib}, ""},
		"deaf to SIGTERM":         {"trap '' TERM; while :; do head -c 1M /dev/zero >> big; sleep 0.01; done", Quota{Bytes: 20 * mib}, "workspace_bytes"},
		"sparse":                  {"truncate -s 1T big; head -c 1M /dev/zero > x; sleep 2.5", Quota{Bytes: 20 * mib}, ""},
		"hard links":              {"head -c 5M /dev/zero > a; for i in $(seq 200); do ln a l$i; done; sleep 2.5", Quota{Bytes: 20 * mib}, ""},
		"within":                  {"for i in $(seq 60); do head -c 10M /dev/zero > big; rm big; sleep 0.04; done", Quota{Bytes: 20 * mib, Entries: 100}, ""},
		"over, but not by":        {"rm -f old; head -c 9M /dev/zero > new; sleep 2.5", Quota{Bytes: 5 * mib, UsedBytes: 10 * mib}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(name, "mapped") && os.Getuid() != 0 {
				t.Skip("only root learns what others have mapped")
			}
			f := newFixture(t, "sh", "-c", tc.script)
			tc.quota.Dir = f.workspace
			f.spec.Quota, f.spec.Grace = &tc.quota, time.Second
			if tc.quota.UsedBytes > 0 {
				if err := os.WriteFile(f.workspace+"/old", make([]byte, tc.quota.UsedBytes), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			e := f.run(t)
			switch {
			case tc.limit == "" && (e.Kind != KindExited || code(e) != 0):
				t.Errorf("stopped without need: %+v", e)
			case tc.limit != "" && (e.Kind != KindQuotaExceeded || e.Limit != tc.limit || e.Signal == ""):
				out, errs := f.output(t)
				t.Errorf("got %+v, want quota_exceeded by %s (%s%s)", e, tc.limit, out, errs)
			case tc.limit != "" && !strings.Contains(e.Detail, fmt.Sprint(max(tc.quota.Bytes, tc.quota.Entries))):
				t.Errorf("detail %q does not tell the figures", e.Detail)
			}
		})
	}
}

// Where the file system refuses the write, the failed command's verdict says why.
func TestQuotaOfTheFileSystem(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, "sh", "-c", "head -c 20M /dev/zero > big")
			f.workspace = sandboxtest.ProjectQuotaFS(t, kind)
			f.spec.Files[1].Path = f.workspace
			f.spec.Quota = &Quota{Dir: f.workspace, Bytes: 8 << 20}
			if err := os.Chown(f.workspace, testUID, testGID); err != nil {
				t.Fatal(err)
			}
			if err := diskquota.SetProject(f.workspace, 7, diskquota.Limits{Bytes: 8 << 20}); err != nil {
				t.Fatal(err)
			}
			e := f.run(t)
			if e.Kind != KindQuotaExceeded || e.Limit != "workspace_bytes" || code(e) == 0 {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// The watch costs a shim with a large tree neither memory nor much time.
func TestQuotaWatchIsCheap(t *testing.T) {
	const files = 50_000
	f := newFixture(t, "sh", "-c", "for i in 1 2 3 4; do head -c 2M /dev/zero > $i; sleep 1.1; done; echo; read x < fifo")
	for i := range files {
		if i%500 == 0 {
			if err := os.Mkdir(fmt.Sprintf("%s/d%d", f.workspace, i/500), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/d%d/%d", f.workspace, i/500, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// So near to the limit that it walks again and again.
	f.spec.Quota = &Quota{Dir: f.workspace, Entries: 2 * files, Bytes: 11 << 20, UsedBytes: 10 << 20, UsedEntries: files}
	f.spec.Argv[len(f.spec.Argv)-1] = "mkfifo fifo; " + f.spec.Argv[len(f.spec.Argv)-1]
	h := f.start(t)
	for page, err := range OpenLog(f.dir).Follow(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if page.Next > 0 { // the command's last step
			break
		}
	}
	s, err := h.Status(t.Context())
	if err != nil || s.State != StateRunning {
		t.Fatalf("%+v %v", s, err)
	}
	rss, cpu := residentBytes(t, s.ShimPID), processorTime(t, s.ShimPID)
	t.Logf("the shim has %d KiB, and used %v", rss>>10, cpu)
	if rss > 8<<20 {
		t.Errorf("the shim has %d bytes resident, want at most 8 MiB", rss)
	}
}

// processorTime has the resolution of a clock tick, 10 ms.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
