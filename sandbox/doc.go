// Package sandbox states what sandboxed code may see and use, finds out what
// this host can enforce of it, and turns both into something to run.
//
// A Policy is the intent. Policy.Spec writes it down as an OCI runtime-spec
// document, which package bubblewrap translates to a command line and package
// containerd has run by runc; package document says what it may hold. Package
// seccomp holds the system call profile, package cgroup the resource limits,
// package supervisor the process that runs and outlives everything.
//
// Open probes the host by running real sandboxes of one backend and gives a
// Host: its Report says how strong the sandbox is here (the tier), what is
// missing and how to get it; its Command makes an execution's spec. Once the
// supervisor runs, Begin makes the sandbox where the supervisor does not make it
// itself, and after its verdict End removes what is left; both do nothing with
// bubblewrap. What a policy asks for and the host cannot give is an error, never
// a weaker sandbox.
package sandbox
