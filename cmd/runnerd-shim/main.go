// Command runnerd-shim supervises one execution ("supervise DIR", started by
// runnerd) and is pid 1 inside the sandbox ("init FD -- PROGRAM ARGS...").
package main

import (
	"errors"
	"fmt"
	"os"

	"skerry.internal/sandbox/supervisor"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runnerd-shim:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "supervise":
		return supervisor.Supervise(args[1])
	case len(args) > 1 && args[0] == "init":
		return supervisor.Init(args[1:])
	}
	return errors.New("usage: runnerd-shim supervise DIR | runnerd-shim init FD -- PROGRAM ARGS...\nIt is started by runnerd, not by hand")
}
