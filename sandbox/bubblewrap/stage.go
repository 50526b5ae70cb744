package bubblewrap

import (
	"os"
	"path/filepath"
	"syscall"
)

// reachable reports whether the user can walk to path. In doubt it says no: the
// only cost is a detour.
func reachable(path string, uid, gid uint32) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil || !mayTraverse(info, uid, gid) {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

func mayTraverse(info os.FileInfo, uid, gid uint32) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	switch {
	case st.Uid == uid:
		return info.Mode()&0o100 != 0
	case st.Gid == gid:
		return info.Mode()&0o010 != 0
	}
	return info.Mode()&0o001 != 0
}

// stageDir gives a directory that may be covered: it exists, every user can
// reach it, and no source that is named by path lies below it.
func (t *translation) stageDir() (string, error) {
	for _, dir := range t.config.StageDirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !reachable(dir, 1, 1) {
			continue
		}
		covers := false
		for _, source := range t.named {
			covers = covers || under(source, []string{dir})
		}
		if !covers {
			return dir, nil
		}
	}
	return "", unsupported("paths that the agent's user can't reach on a host without any of %v to stage them", t.config.StageDirs)
}
