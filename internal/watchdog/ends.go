package watchdog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// File is in the directory that Remember is given, unless all runs of the last hour ended in order.
const File = "watchdog.json"

// run is one run of the process: the one that runs, or one that did not end in order.
type run struct {
	At   time.Duration `json:"at"`             // since the boot: its start, or since when it hangs, nanoseconds
	Hung []string      `json:"hung,omitempty"` // why it was ended, if the watchdog did that
}

// runs is the file's content. Those of another boot do not count.
type runs struct {
	Boot string `json:"boot"`
	Runs []run  `json:"runs"`
}

// ends keeps the runs of the last hour.
type ends struct {
	path string

	mu   sync.Mutex // a leaf
	list runs       // the last is this run
}

// begin notes a run that starts.
func begin(dir string, now time.Duration) (*ends, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot's ID: %w", err)
	}
	m := &ends{path: filepath.Join(dir, File)}
	text, err := os.ReadFile(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err //nolint:wrapcheck // names the file
	}
	id := strings.TrimSpace(string(boot))
	if json.Unmarshal(text, &m.list) != nil || m.list.Boot != id { // torn by a power-cut: of another boot, too
		m.list = runs{Boot: id}
	}
	m.list.Runs = slices.DeleteFunc(m.list.Runs, func(r run) bool { return !r.within(now) })
	m.list.Runs = append(m.list.Runs, run{At: now})
	return m, m.write(m.list)
}

// within reports whether a run counts.
func (r run) within(now time.Duration) bool { return r.At <= now && now-r.At < hour }

// recent are the runs before this one that ended out of order within the last hour.
func (m *ends) recent(now time.Duration) (all []run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.list.Runs[:len(m.list.Runs)-1] {
		if r.within(now) {
			all = append(all, r)
		}
	}
	return all
}

// hung notes that this run is ended because loops hang.
func (m *ends) hung(now time.Duration, all []Hung) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := run{At: now}
	for _, h := range all {
		r.Hung = append(r.Hung, h.Name)
	}
	m.list.Runs[len(m.list.Runs)-1] = r
	return m.write(m.list)
}

// inOrder forgets this run.
func (m *ends) inOrder() {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := m.list
	rest.Runs = rest.Runs[:len(rest.Runs)-1]
	if len(rest.Runs) == 0 {
		_ = os.Remove(m.path)
		return
	}
	_ = m.write(rest) // it then counts as one end too many
}

// write replaces the file. It need not survive a power-cut.
func (m *ends) write(list runs) error {
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.path, err)
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o755); err != nil { // like the control socket, it is recreated when it was removed
		return err //nolint:wrapcheck // names the directory
	}
	if err := os.WriteFile(m.path+".new", text, 0o600); err != nil {
		return err //nolint:wrapcheck // names the file
	}
	return os.Rename(m.path+".new", m.path) //nolint:wrapcheck // names the file
}
