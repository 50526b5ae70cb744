package sandbox

import (
	"context"
	"errors"
	"os"

	"skerry.internal/sandbox/containerd"
)

// runContainerd is run for the backend containerd, whose parts the host's
// administrator has installed: only the whole is tried.
func (p *prober) runContainerd(ctx context.Context) error {
	p.host.report.Tier = TierNone
	b, err := newContainerd(p.host)
	if err == nil {
		p.host.backend = b
		err = p.tryContainerd(ctx, b)
	} else {
		p.add(p.explainContainerd(err))
	}
	if err != nil {
		return ctx.Err() //nolint:nilerr // the report says it
	}
	_, err = os.Stat("/proc/self/ns/cgroup")
	p.add(Guarantee{Name: CgroupNamespace, Available: err == nil, Remedy: "a kernel with CONFIG_CGROUPS and cgroup name spaces"})
	p.cgroups()
	if err := p.tryComplete(ctx, "by seccomp"); err != nil {
		return err
	}
	if p.notMade != nil { // it answers, but makes no sandbox
		p.host.report.Guarantees[0] = p.explainContainerd(p.notMade)
	}
	p.host.report.Tier = p.host.report.tier()
	return ctx.Err()
}

func (p *prober) tryContainerd(ctx context.Context, b *containerd.Backend) error {
	version, err := b.Check(ctx, os.Getuid())
	if err == nil {
		err = b.Prepare(ctx)
	}
	if err != nil {
		p.add(p.explainContainerd(err))
		return err
	}
	root := "the host's read-only system"
	if image := p.config.Containerd.Image; image != "" {
		root = "image " + image
	}
	p.add(Guarantee{Name: Containerd, Available: true, Why: "version " + version + ", " + root})
	return nil
}

func (p *prober) explainContainerd(err error) Guarantee {
	var typed *containerd.UnavailableError
	if errors.As(err, &typed) {
		return Guarantee{Name: Containerd, Why: typed.Why, Remedy: typed.Remedy}
	}
	return Guarantee{Name: Containerd, Why: err.Error(), Remedy: "look at containerd's own log"}
}
