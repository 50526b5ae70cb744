package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// mounts are the hierarchies of this host.
type mounts struct {
	v1 map[string]string // controller -> mount point
	v2 string
}

// readMounts parses mountinfo: "ID PARENT DEV ROOT POINT OPTIONS ... - TYPE
// SOURCE SUPEROPTIONS".
func readMounts(path string) (mounts, error) {
	m := mounts{v1: map[string]string{}}
	err := eachLine(path, func(line string) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			return
		}
		switch r[0] {
		case "cgroup2":
			if m.v2 == "" {
				m.v2 = l[4]
			}
		case "cgroup":
			for option := range strings.SplitSeq(r[2], ",") {
				if slices.Contains(wanted, option) && m.v1[option] == "" {
					m.v1[option] = l[4]
				}
			}
		}
	})
	return m, err
}

// readOwn gives the process's own group by controller; that of the unified
// hierarchy under "".
func readOwn(path string) (map[string]string, error) {
	own := map[string]string{}
	err := eachLine(path, func(line string) {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			return
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			own[controller] = parts[2]
		}
	})
	return own, err
}

func eachLine(path string, do func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("find control groups: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		do(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("find control groups: %w", err)
	}
	return nil
}
