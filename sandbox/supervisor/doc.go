// Package supervisor runs one sandboxed execution and outlives the daemon that
// asked for it.
//
// It has three sides, which meet only in the execution's directory:
//
//   - The daemon's side: Start, Attach and the Handle they return, OpenLog,
//     ReadExit. It needs no connection to a supervisor that already ended.
//   - The supervisor ("shim"), Supervise: one process an execution. It owns the
//     output pipes, the log, the time-out, the control groups and exit.json,
//     which it writes only when no process of the sandbox is alive.
//     The sandbox is started by the shim, or by another who is told to let its
//     init connect (LaunchConnect); all the rest is the same.
//   - The init inside the sandbox, Init: pid 1 of the pid namespace. It starts
//     the command, reaps every orphan and reports the exact wait status over a
//     socket that the command cannot reach.
//
// Files of an execution's directory:
//
//	spec.json  what to run, written by the daemon; the shim holds a flock on it
//	           while it lives
//	resolve    flock of those who settle the case of a dead shim
//	shim.json  identity of shim and init, written before the command starts
//	cancel     a durable wish to cancel, with its reason
//	abort      why the sandbox that should connect will not come
//	void       the execution was never started and never may be
//	exit.json  the verdict; its presence means nothing of the sandbox is alive
//	log/       segments of the output, see LogReader
//	control/   what a sandbox that connects shows to its init
//	sock       the shim's socket, for status and cancel
//
// The package depends on the standard library and golang.org/x/sys alone: the
// shim's start-up time and memory are paid once for every execution.
package supervisor
