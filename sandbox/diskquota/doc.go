// Package diskquota bounds what one directory tree takes of its file system: by
// a project quota, where the kernel then refuses the write itself, and by a
// Watcher that counts a tree that may be hostile, huge and changing. It depends
// on the standard library and golang.org/x/sys alone.
package diskquota
