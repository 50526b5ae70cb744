// Package cgroup finds out which control groups this process may make and turns
// limits into directories for the supervisor to create, on version 1, version 2
// and hybrid hosts. It changes the host only in Setup.
package cgroup
