package sandbox

import (
	"testing"

	"skerry.internal/sandbox/sandboxtest"
)

// perBackend runs the test against every backend of this machine. An ordinary
// user's machine has bubblewrap alone: containerd is for a daemon that is root.
func perBackend(t *testing.T, test func(t *testing.T, open func(change func(*Config)) *world)) {
	t.Run(Bubblewrap, func(t *testing.T) {
		test(t, func(change func(*Config)) *world { return newWorld(t, change) })
	})
	t.Run(Containerd, func(t *testing.T) {
		c := sandboxtest.StartContainerd(t)
		test(t, func(change func(*Config)) *world {
			w := newWorld(t, func(config *Config) {
				config.Backend, config.Containerd = Containerd, ContainerdConfig{Address: c.Address}
				if change != nil {
					change(config)
				}
			})
			w.containerd = c
			return w
		})
	})
}

func TestQuick(t *testing.T) {
	perBackend(t, func(t *testing.T, open func(func(*Config)) *world) {
		w := open(nil)
		t.Log(w.host.Report())
		r := w.shell(t, "id; cat /proc/self/cgroup; mount; exit 3")
		t.Logf("%+v", r)
	})
}
