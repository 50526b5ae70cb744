package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

type transfer struct {
	ID, State, Route string
	Counts           map[string]string
	Problem          struct{ Reason, Message string }
}

func (tr transfer) ended() bool {
	return tr.State != "" && tr.State != "queued" && tr.State != "running"
}

// count is how many files have an outcome; JSON leaves out zeroes.
func (tr transfer) count(outcome string) int {
	n, err := strconv.Atoi("0" + tr.Counts[outcome])
	if err != nil {
		return -1
	}
	return n
}

// entry is one path as a snapshot has it.
type entry struct {
	Path, Type, Digest, SymlinkTarget string
	Mode                              uint32
}

// entries lists all in a workspace's head.
func (b *testbed) entries(token, ws string) map[string]entry {
	b.t.Helper()
	all := map[string]entry{}
	for page := ""; ; {
		var out struct {
			Files         []entry
			NextPageToken string
		}
		b.as(token, "FileService/ListFiles", map[string]any{"workspace": map[string]any{"id": ws}, "recursive": true, "limit": 500, "pageToken": page}, &out)
		for _, e := range out.Files {
			if e.Type == "dir" {
				e.Digest = ""
			}
			all[e.Path] = e
		}
		if page = out.NextPageToken; page == "" {
			return all
		}
	}
}

// outcomes gives each file's, of which there must be one.
func (b *testbed) outcomes(token, id string) map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for page := ""; ; {
		var out struct {
			Files                           []struct{ Path, State string }
			NextPageToken, FilesUnavailable string
		}
		b.until("outcomes of "+id, func() bool {
			out.FilesUnavailable, out.Files, out.NextPageToken = "", nil, ""
			b.as(token, "TransferService/GetTransfer", map[string]any{"transferId": id, "fileLimit": 1000, "pageToken": page}, &out)
			return out.FilesUnavailable == ""
		})
		for _, f := range out.Files {
			if _, twice := all[f.Path]; twice {
				b.t.Errorf("%s has two outcomes", f.Path)
			}
			all[f.Path] = f.State
		}
		if page = out.NextPageToken; page == "" {
			return all
		}
	}
}

// many makes small files, symlinks, empty directories, one large file and files
// of other modes.
const many = `mkdir -p t/empty t/a/b/hollow; cd t
for d in $(seq 0 99); do mkdir d$d; for i in $(seq 1 %d); do echo "%s $d $i $RANDOM" > d$d/f$i; done; done
for i in $(seq 1 50); do ln -s ../d1/f$i a/link$i; chmod 755 d2/f$i; chmod 600 d3/f$i; done; ln -s nowhere dangling
head -c 52428800 /dev/urandom > large`

// Every file of a transfer has one true outcome whoever is killed while it goes on
// (F50), whether the runners reach each other or a coordinator must relay.
func TestF50TransferWhileAllAreKilled(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	b := up(t)
	b.run("partition", "r1", "r3")
	end := time.Now().Add(soakTime(0))
	for round := 0; round == 0 || time.Now().Before(end) && !t.Failed(); round++ {
		b.transferUnderFire(random, b.newAgent(fmt.Sprint("mover", round)))
	}
}

func (b *testbed) transferUnderFire(random *rand.Rand, agent string) {
	b.t.Helper()
	jobs := []*job{{b: b, token: agent, to: "r2", route: "direct"}, {b: b, token: agent, to: "r3", route: "relay"}}
	b.sh(agent, "r1", fmt.Sprintf(many, 100, "a line"))
	for _, j := range jobs {
		b.sh(agent, j.to, "echo before > before")
		j.begin()
	}
	k := &killer{b: b, random: random}
	k.run(jobs)
	b.t.Logf("killed: %s", strings.Join(k.log, ", "))
	if len(k.log) < 2 {
		b.t.Errorf("only %d were killed while the transfers went on", len(k.log))
	}
	want := b.entries(agent, b.workspaceOn(agent, "r1").ID)
	for _, j := range jobs {
		j.check(want)
	}
}

// job is one transfer under test.
type job struct {
	b                *testbed
	token, to, route string
	id, target       string
	last             transfer
}

func (j *job) begin() {
	j.b.t.Helper()
	j.target = j.b.workspaceOn(j.token, j.to).ID
	var out struct{ Transfer transfer }
	j.b.as(j.token, "TransferService/StartTransfer", map[string]any{"source": j.b.workspaceOn(j.token, "r1").ID, "target": j.target,
		"mappings": []map[string]any{{"source": "t", "target": "t"}}, "idempotencyKey": "to-" + j.to}, &out)
	j.id = out.Transfer.ID
}

// over asks whether the transfer has ended; who cannot say says no.
func (j *job) over() bool {
	var out struct{ Transfer transfer }
	o := j.b.agents.call(j.b.t.Context(), j.b.Endpoint, j.token, "TransferService/GetTransfer", map[string]any{"transferId": j.id, "fileLimit": 1}, &out)
	if o.kind == done {
		j.last = out.Transfer
	}
	return o.kind == done && out.Transfer.ended()
}

func (j *job) check(want map[string]entry) {
	t := j.b.t
	t.Helper()
	j.b.until("end of the transfer to "+j.to, j.over)
	t.Logf("%s: %s %s %v %v", j.to, j.last.State, j.last.Route, j.last.Counts, j.last.Problem)
	// None is told when a runner that was killed had all content by then.
	if j.last.Route != j.route && j.last.Route != "" {
		t.Errorf("%s: went by %q, want %s", j.to, j.last.Route, j.route)
	}
	outcomes := j.b.outcomes(j.token, j.id)
	counted := map[string]int{}
	for _, state := range outcomes {
		counted[state]++
	}
	for _, state := range []string{"pending", "copying", "completed", "failed", "cancelled", "unknown"} {
		if j.last.count(state) != counted[state] {
			t.Errorf("%s: the job counts %d %s, its files %d", j.to, j.last.count(state), state, counted[state])
		}
	}
	if all := counted["completed"] == len(outcomes); all != (j.last.State == "completed") || counted["pending"]+counted["copying"] > 0 {
		t.Errorf("%s: state %s with %v", j.to, j.last.State, counted)
	}
	j.compare(want, outcomes)
}

// compare holds the outcomes against what the target has: what is said to be
// completed is there as in the source, and nothing else is.
func (j *job) compare(want map[string]entry, outcomes map[string]string) {
	t := j.b.t
	t.Helper()
	// Nothing is in the directory that is not in the head.
	if e := j.b.sh(j.token, j.to, "true"); e.Changes.CreatedCount+e.Changes.ModifiedCount+e.Changes.DeletedCount != 0 {
		t.Errorf("%s: the directory is not what was committed: %+v", j.to, e.Changes)
	}
	got := j.b.entries(j.token, j.target)
	delete(got, "before")
	var wrong []string
	for path, e := range want {
		state, known := outcomes[path]
		if e.Type == "dir" && !known {
			continue // those that are not empty come with what is in them
		}
		if !known || (state == "completed" && got[path] != e) {
			wrong = append(wrong, fmt.Sprintf("%s is %q: %+v, want %+v", path, state, got[path], e))
		}
	}
	for path, e := range got {
		if _, ok := want[path]; !ok || (e.Type != "dir" && outcomes[path] != "completed" && outcomes[path] != "unknown") {
			wrong = append(wrong, fmt.Sprintf("%s is there, its outcome %q", path, outcomes[path]))
		}
	}
	slices.Sort(wrong)
	if len(wrong) > 0 {
		t.Errorf("%s: %d are wrong, such as %s", j.to, len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "\n"))
	}
	sum := "cd t && sha256sum large d1/f1 d99/f100 && find . -type f | wc -l && cat d*/f* | sha256sum"
	if here, there := j.b.sh(j.token, j.to, sum).Stdout.Text, j.b.sh(j.token, "r1", sum).Stdout.Text; j.last.State == "completed" && here != there {
		t.Errorf("%s has %s, want %s", j.to, here, there)
	}
}

// killer kills runners and the leader, again and again.
type killer struct {
	b      *testbed
	random *rand.Rand
	log    []string
}

// mostKilling is how long a transfer is kept from ending.
const mostKilling = 12 * time.Second

// run kills until all jobs are over, and leaves them alone after a while.
func (k *killer) run(jobs []*job) {
	over := func() bool {
		var all sync.WaitGroup
		ended := make([]bool, len(jobs))
		for i, j := range jobs {
			all.Go(func() { ended[i] = j.over() })
		}
		all.Wait()
		return !slices.Contains(ended, false)
	}
	for end := time.Now().Add(mostKilling); time.Now().Before(end) && !over(); {
		time.Sleep(upTo(k.random, 50, 900))
		victim := []string{"r1", "r2", "r3", "leader"}[k.random.IntN(4)]
		if victim == "leader" {
			victim = k.b.awaitLeader()
		}
		k.b.run("kill", victim)
		time.Sleep(upTo(k.random, 0, 700))
		k.b.run("start", victim)
		k.log = append(k.log, victim)
	}
	for _, runner := range k.b.withRole("runner") {
		k.b.awaitRunner(runner, "up")
	}
}
