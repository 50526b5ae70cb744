package supervisor

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// pipeLimit bounds the wait for the pipes' end once every process is dead. It
// only ever passes if something outside the sandbox got hold of a pipe.
const pipeLimit = 2 * time.Second

// finish writes the verdict. By now no process of the sandbox is alive.
func (r *run) finish(broken string) error {
	if r.out.broken == "" {
		r.out.broken = broken
	}
	if r.ended.IsZero() {
		r.ended = time.Now()
	}
	notes := r.notes
	r.closePipes(&notes)
	r.out.oomKills = r.cgroups.oomKills()
	r.noteFullProject()
	usage := r.usage()
	r.cgroups.kill()
	if err := r.cgroups.remove(); err != nil {
		notes = append(notes, err.Error())
	}
	exit := r.out.verdict()
	exit.Started, exit.Ended = r.started, r.ended
	exit.Usage = usage
	if r.input != nil {
		r.input.shut()
		exit.InputBytes = r.input.total
	}
	if r.log != nil {
		if err := r.log.close(); err != nil {
			notes = append(notes, "part of the output could not be kept: "+err.Error())
		}
		exit.Log = r.log.snapshot()
	}
	exit.Detail = joinDetail(exit.Detail, notes)
	if r.server != nil {
		r.server.close()
	}
	return r.publish(exit)
}

func (r *run) publish(exit Exit) error {
	if r.exitFile == nil {
		var err error
		if r.exitFile, err = newPendingFile(".", exitFile); err != nil {
			return fmt.Errorf("write exit: %w", err)
		}
	}
	defer r.exitFile.close()
	return exit.publish(r.exitFile)
}

// closePipes waits for the last output. Before init said hello the pipes carry
// what bwrap has to say about a sandbox that it could not set up.
func (r *run) closePipes(notes *[]string) {
	if r.pump != nil {
		if !r.pump.wait(pipeLimit) {
			*notes = append(*notes, "an output pipe was still held open after the end of all processes")
		}
		return
	}
	if r.child.err < 1 {
		return
	}
	f := os.NewFile(uintptr(r.child.err), "stderr")
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 4<<10))
	said := strings.TrimSpace(string(b))
	if r.spec.connects() && r.out.broken == "" && r.out.cause == "" {
		r.out.broken = "the sandbox's init ended before it was ready"
		return
	}
	if r.out.broken == "" && r.out.cause == "" {
		r.out.broken = fmt.Sprintf("the sandbox could not be set up: %s (%s)", said, describe(r.reaper.hostStatus()))
	}
}

func joinDetail(detail string, notes []string) string {
	if detail != "" {
		notes = append([]string{detail}, notes...)
	}
	return strings.Join(notes, "; ")
}
