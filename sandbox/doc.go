// Package sandbox states what sandboxed code may see and use, finds out what
// this host can enforce of it, and turns both into something to run.
//
// A Policy is the intent. Policy.Spec writes it down as an OCI runtime-spec
// document, which a container runtime can run as it stands and which package
// bubblewrap translates to a command line. Package seccomp holds the system
// call profile, package cgroup the resource limits, package supervisor the
// process that runs and outlives everything.
//
// Open probes the host by running real sandboxes and gives a Host: its Report
// says how strong the sandbox is here (the tier), what is missing and how to
// get it; its Command makes an execution's spec. What a policy asks for and the
// host cannot give is an error, never a weaker sandbox.
package sandbox
