package sandbox

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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
func (p *prober) tryComplete(ctx context.Context, nested string) error {
	seen, failure, err := p.look(ctx, probeScript, false)
	if err != nil {
		return err
	}
	judge := func(name string, ok bool, why string) {
		g := Guarantee{Name: name, Available: failure == "" && ok, Why: why}
		if !g.Available {
			g.Why = strings.TrimSpace(failure + " " + strings.Join(seen, "; "))
			g.Remedy = "a kernel with CONFIG_SECCOMP_FILTER and network name spaces; then ask the project, with this report"
		}
		p.addMade(g)
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
	judge(NestedUserns, has("nested no"), nested)
	return p.tryEgress(ctx)
}

// egressScript asks through the proxy's port and looks for another way.
const egressScript = `
( exec 3<>/dev/tcp/127.0.0.1/3128; read -r line <&3; echo "$line" ) 2>/dev/null
while read -r name rest; do
  case "$name" in *:*) echo "interface $name";; esac
done < /proc/net/dev
`

// egressHello is what the probe's gateway says.
const egressHello = "gateway reached"

// tryEgress looks whether a sandbox reaches a gateway, and only that.
func (p *prober) tryEgress(ctx context.Context) error {
	seen, failure, err := p.look(ctx, egressScript, true)
	if err != nil {
		return err
	}
	g := Guarantee{Name: NetworkAllowed, Available: failure == "" && slices.Contains(seen, egressHello) && onlyLoopback(seen),
		Why: "by the egress gateway's socket; no interface"}
	if !g.Available {
		g.Why = strings.TrimSpace(failure + " " + strings.Join(seen, "; "))
		g.Remedy = "a bubblewrap that brings up the loopback interface; until then only network \"none\" works here"
	}
	p.addMade(g)
	return nil
}

// addMade is add for what only a sandbox that was made could have shown.
func (p *prober) addMade(g Guarantee) {
	if p.notMade != nil {
		g.Available, g.Why, g.Remedy = false, "no sandbox could be made", "see "+p.config.Backend+" above"
	}
	p.add(g)
}

// greet stands for the gateway of one probe. The directory must be one that the
// sandbox's user can pass.
func (p *prober) greet(dir string) (stop func(), err error) {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	// By way of the descriptor, for the path may be too long for a socket.
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	name := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), EgressSocket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(name, 0o666); err != nil {
		_ = l.Close()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(egressHello + "\n"))
			_ = c.Close()
		}
	}()
	return func() { _ = l.Close(); <-done }, nil
}

func onlyLoopback(seen []string) bool {
	for _, s := range seen {
		if name, ok := strings.CutPrefix(s, "interface "); ok && name != "lo:" {
			return false
		}
	}
	return true
}

// look runs the script, with a gateway if egress is set. failure says why it
// could not, if the sandbox is to blame.
func (p *prober) look(ctx context.Context, script string, egress bool) (seen []string, failure string, err error) {
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
	policy := Policy{Workspace: workspace, Args: []string{"bash", "-c", script}}
	if egress {
		policy.Network, policy.Egress = NetworkAllowlist, filepath.Join(dir, "net")
		stop, err := p.greet(policy.Egress)
		if err != nil {
			return nil, "", err
		}
		defer stop()
	}
	if os.Getuid() == 0 {
		policy.HostUID, policy.HostGID = p.config.ProbeUID, p.config.ProbeGID
		if err := os.Chown(workspace, int(policy.HostUID), int(policy.HostGID)); err != nil {
			return nil, "", err
		}
	}
	id := filepath.Base(dir)[1:]
	spec, err := p.host.command(id, policy)
	if err != nil {
		return nil, "", err
	}
	spec.Timeout = probeTimeout
	exit, err := p.supervise(ctx, exec, spec, policy)
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
func (p *prober) supervise(ctx context.Context, dir string, spec supervisor.Spec, policy Policy) (supervisor.Exit, error) {
	h, err := supervisor.Start(ctx, p.config.Shim, dir, spec)
	if err != nil {
		return supervisor.Exit{}, err
	}
	if err := p.host.Begin(ctx, spec.ID, h, policy); err != nil {
		p.notMade = err // the verdict has other causes
	}
	exit, err := h.Wait(ctx)
	defer func() { _ = p.host.End(context.WithoutCancel(ctx), spec.ID) }()
	if err != nil && ctx.Err() != nil {
		late := context.WithoutCancel(ctx)
		_ = h.Cancel(late, "the probe was called off")
		_, _ = h.Wait(late)
	}
	return exit, err
}
