package cniconf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrReplaced means that the host has another directory now where a container was given one: what the agent writes there reaches nobody.
var ErrReplaced = errors.New("the host's directory was replaced or deleted, and this container still has the former one")

// mounts are the roots of those of dirs that are mounts of their own, as a container's are: proc_pid_mountinfo(5), fields 4 and 5. The
// kernel keeps a root's path up to date when the directory is renamed, and adds "//deleted".
func mounts(mountinfo string, dirs ...string) map[string]string {
	out, by := map[string]string{}, map[string]string{}
	for _, dir := range dirs {
		by[escapes.Replace(dir)] = dir
	}
	lines := bufio.NewScanner(strings.NewReader(mountinfo))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
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

func readMounts(dirs ...string) map[string]string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil // is unknown
	}
	return mounts(string(b), dirs...)
}

// Replaced fails with ErrReplaced if a directory that this container was given is no longer the host's.
func (i *Installer) Replaced() error { return replaced(i.mounted, readMounts(i.dirs()...)) }

func replaced(before, now map[string]string) error {
	for dir, root := range before {
		if is := now[dir]; is != "" && is != root {
			return fmt.Errorf("%w: %s is what is %s on the host now, and was %s at the start", ErrReplaced, dir, is, root)
		}
	}
	return nil
}

func (i *Installer) dirs() []string {
	return []string{i.c.RuntimeDir, i.c.ConfDir, i.c.BinDir, i.c.DataDir}
}
