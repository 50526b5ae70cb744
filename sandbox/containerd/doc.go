// Package containerd runs a sandbox's OCI document with containerd and runc.
//
// containerd makes the name spaces and nothing else: the sandbox's pid 1 is
// runnerd-shim, which connects to the execution's supervisor (see package
// supervisor, LaunchConnect). Output, time-outs, limits and verdicts are the
// supervisor's, so that they are the same as with bubblewrap and hold while
// containerd, or the daemon, is away.
package containerd
