package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"skerry.internal/sandbox/supervisor"
)

// probeScript looks at the complete sandbox from within. Each line it prints is
// "NAME VALUE".
const probeScript = `
while read -r name value rest; do
  case "$name" in Seccomp:|NoNewPrivs:|CapEff:|CapBnd:) echo "$name $value";; esac
done < /proc/self/status
while read -r name rest; do
  case "$name" in *:*) echo "interface $name";; esac
done < /proc/net/dev
if unshare -U true 2>/dev/null; then echo "nested yes"; else echo "nested no"; fi
`

// tryComplete runs the script as an execution like any other and judges what it
// saw.
func (p *prober) tryComplete(ctx context.Context, disabledUserns bool) error {
	seen, failure, err := p.look(ctx)
	if err != nil {
		return err
	}
	judge := func(name string, ok bool, why string) {
		g := Guarantee{Name: name, Available: failure == "" && ok, Why: why}
		if !g.Available {
			g.Why = strings.TrimSpace(failure + " " + strings.Join(seen, "; "))
			g.Remedy = "a kernel with CONFIG_SECCOMP_FILTER and network name spaces; then ask the project, with this report"
		}
		p.add(g)
	}
	has := func(line string) bool {
		for _, s := range seen {
			if s == line {
				return true
			}
		}
		return false
	}
	judge(Seccomp, has("Seccomp: 2") && has("NoNewPrivs: 1") && has("CapEff: 0000000000000000") && has("CapBnd: 0000000000000000"), "")
	judge(NetworkNoneG, onlyLoopback(seen), "")
	judge(NestedUserns, has("nested no"), choose(disabledUserns, "by bubblewrap and seccomp", "by seccomp"))
	return nil
}

func onlyLoopback(seen []string) bool {
	for _, s := range seen {
		if name, ok := strings.CutPrefix(s, "interface "); ok && name != "lo:" {
			return false
		}
	}
	return true
}

// look runs the script. failure says why it could not, if the sandbox is to
// blame.
func (p *prober) look(ctx context.Context) (seen []string, failure string, err error) {
	dir, err := os.MkdirTemp(p.config.StateDir, ".probe-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	workspace, exec := filepath.Join(dir, "workspace"), filepath.Join(dir, "exec")
	for _, d := range []string{workspace, exec} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, "", err
		}
	}
	policy := Policy{Workspace: workspace, Args: []string{"bash", "-c", probeScript}}
	if os.Getuid() == 0 {
		policy.HostUID, policy.HostGID = p.config.ProbeUID, p.config.ProbeGID
		if err := os.Chown(workspace, int(policy.HostUID), int(policy.HostGID)); err != nil {
			return nil, "", err
		}
	}
	spec, err := p.host.command(filepath.Base(dir)[1:], policy)
	if err != nil {
		return nil, "", err
	}
	spec.Timeout = probeTimeout
	exit, err := p.supervise(ctx, exec, spec)
	if err != nil {
		return nil, "", err
	}
	if exit.Kind != supervisor.KindExited || *exit.Code != 0 {
		return nil, fmt.Sprintf("a complete sandbox does not work: %s %s", exit.Kind, exit.Detail), nil
	}
	out, _, err := supervisor.Summary(exec, 64<<10)
	return strings.Split(strings.TrimSpace(string(out.Head)), "\n"), "", err
}

// supervise runs spec to its end; when ctx ends before, so does the execution.
func (p *prober) supervise(ctx context.Context, dir string, spec supervisor.Spec) (supervisor.Exit, error) {
	h, err := supervisor.Start(ctx, p.config.Shim, dir, spec)
	if err != nil {
		return supervisor.Exit{}, err
	}
	exit, err := h.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		late := context.WithoutCancel(ctx)
		_ = h.Cancel(late, "the probe was called off")
		_, _ = h.Wait(late)
	}
	return exit, err
}
