package cniconf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrReplaced means that the host has another directory now where a container, or a unit, was given one: what the agent writes there reaches nobody.
var ErrReplaced = errors.New("the host's directory was replaced or deleted, and this process still has the former one")

// mounts are the roots of those of dirs that are mounts of their own, as a container's are: proc_pid_mountinfo(5), fields 4 and 5. The
// kernel keeps a root's path up to date when the directory is renamed, and adds "//deleted".
func mounts(mountinfo string, dirs ...string) map[string]string {
	out, by := map[string]string{}, map[string]string{}
	for _, dir := range dirs {
		by[escapes.Replace(dir)] = dir
	}
	for _, line := range strings.Split(mountinfo, "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if dir := by[f[4]]; dir != "" {
			out[dir] = f[3] // the last one is on top
		}
	}
	return out
}

// escapes makes a path what mountinfo has.
var escapes = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`) //nolint:gochecknoglobals // a constant

// readMounts fails where nothing is known of mounts, which says nothing of them.
func readMounts(dirs ...string) (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return mounts(string(b), dirs...), nil
}

// Replaced fails with ErrReplaced if a directory that this process was given is no longer the host's.
func (i *Installer) Replaced() error {
	if len(i.mounted) == 0 {
		return nil
	}
	var dirs []string
	for dir := range i.mounted {
		dirs = append(dirs, dir)
	}
	now, err := readMounts(dirs...)
	if err != nil {
		return nil // looked at again in the next pass
	}
	return replaced(i.mounted, now)
}

func replaced(before, now map[string]string) error {
	for dir, root := range before {
		if is := now[dir]; is != root { // none: where the mount's place was the directory itself, as in a unit, it went with it
			return fmt.Errorf("%w: %s was %s on the host at the start, and is %s now", ErrReplaced, dir, root, cmp.Or(is, "gone"))
		}
	}
	return nil
}

// dirs are as mountinfo has them, without symbolic links.
func (i *Installer) dirs() (out []string) {
	for _, dir := range []string{i.c.RuntimeDir, i.c.ConfDir, i.c.BinDir, i.c.DataDir} {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		out = append(out, dir)
	}
	return out
}
