package sysctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/durable"
)

// MemoryFile, in the state directory, holds sysctls as they were before us.
const MemoryFile = "sysctls.json"

// Memory remembers on disk the value that each sysctl had before its first change. A reboot
// resets the kernel, so values from an earlier boot are ignored.
type Memory struct {
	path string
	mu   sync.Mutex // held from reading the file to writing it; no other lock is taken under it
}

// NewMemory returns the memory in a state directory.
func NewMemory(stateDir string) *Memory {
	return &Memory{path: filepath.Join(stateDir, MemoryFile)}
}

// record is the file's content.
type record struct {
	BootID string            `json:"bootID"`
	Values map[string]string `json:"values"` // by key below /proc/sys
	// Links are the indexes of the interfaces in keys, by name: one may be renamed.
	Links  map[string]int `json:"links,omitempty"`
	Before *Before        `json:"before,omitempty"`
	// Closed are indexes of interfaces with IPv4 forwarding off, while it was on for the host, until we switched it on.
	Closed []int `json:"closed,omitempty"`
}

// now returns the key that a remembered key has today: its interface may have been renamed.
func (r record) now(key string) string {
	dir, rest, ok := cutLink(key)
	if !ok || r.Links[rest[0]] == 0 {
		return key
	}
	link, err := net.InterfaceByIndex(r.Links[rest[0]])
	if err != nil {
		return key // it is gone
	}
	return dir + link.Name + "/" + rest[1]
}

// cutLink splits the key of one interface's sysctl into the directory, the interface's name and what
// follows.
func cutLink(key string) (dir string, rest [2]string, ok bool) {
	for _, dir := range []string{"net/ipv4/conf/", "net/ipv6/conf/"} {
		if after, is := strings.CutPrefix(key, dir); is {
			name, what, _ := strings.Cut(after, "/")
			return dir, [2]string{name, what}, true
		}
	}
	return "", rest, false
}

// load reads the file. The caller holds mu.
func (m *Memory) load() (record, error) {
	boot, err := Read("kernel/random/boot_id")
	if err != nil {
		return record{}, fmt.Errorf("read boot ID: %w", err)
	}
	fresh := record{BootID: boot, Values: map[string]string{}, Links: map[string]int{}}
	b, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read remembered sysctls: %w", err)
	}
	var r record
	// A torn file is from an earlier boot: within one boot it is replaced as a whole.
	if json.Unmarshal(b, &r) != nil || r.BootID != boot || r.Values == nil {
		return fresh, nil
	}
	if r.Links == nil { // an older version's
		r.Links = fresh.Links
	}
	return r, nil
}

// all returns what is remembered.
func (m *Memory) all() (record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.load()
}

// remember stores the current value of key, unless one is stored. With a forwarding switch it
// stores the values that the kernel overwrites along with it.
func (m *Memory) remember(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.load()
	if err != nil {
		return err
	}
	keys := []string{key}
	switch key {
	case "net/ipv4/ip_forward":
		keys = append(keys, "net/ipv4/conf/all/accept_redirects")
		keys = append(keys, perInterface("net/ipv4/conf", "forwarding")...)
	case "net/ipv6/conf/all/forwarding":
		keys = append(keys, perInterface("net/ipv6/conf", "forwarding")...)
	}
	before := len(r.Values)
	for _, k := range keys {
		if _, ok := r.Values[k]; ok {
			continue
		}
		v, err := Read(k)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		r.Values[k] = v
		if _, rest, ok := cutLink(k); ok {
			if link, err := net.InterfaceByName(rest[0]); err == nil {
				r.Links[rest[0]] = link.Index
			}
		}
	}
	if len(r.Values) == before {
		return nil
	}
	return m.save(r)
}

// giveBack restores one key, if it still has the value that we set, and forgets it.
func (m *Memory) giveBack(key, ours string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.load()
	if err != nil {
		return err
	}
	if have, _ := Read(r.now(key)); have == ours {
		if err := r.restore(key); err != nil {
			return err
		}
	}
	delete(r.Values, key)
	return m.save(r)
}

func (m *Memory) save(r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(m.path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember sysctls: %w", err)
	}
	return nil
}

// perInterface lists key of every interface but our own.
func perInterface(dir, key string) []string {
	files, _ := filepath.Glob(filepath.Join(file(dir), "*", key))
	var out []string
	for _, f := range files {
		if n := filepath.Base(filepath.Dir(f)); n != "all" && !plan.OurLink(n) {
			out = append(out, dir+"/"+n+"/"+key)
		}
	}
	return out
}

// Restore writes the remembered values back and forgets them. It skips interfaces that
// are gone.
func (m *Memory) Restore() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.load()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range restoreOrder(r.Values) {
		errs = append(errs, r.restore(k))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ignoreNotExist(os.Remove(m.path))
}

// restore writes one value back if it has changed.
func (r record) restore(key string) error {
	now := r.now(key)
	have, err := Read(now)
	if err == nil && have != r.Values[key] {
		err = write(now, r.Values[key])
	}
	return ignoreNotExist(err)
}

// restoreOrder puts the global switches first, since they overwrite the values
// of interfaces, and accept_ra after IPv6 forwarding, so that learnt routers stay.
func restoreOrder(values map[string]string) []string {
	rank := func(k string) int {
		switch {
		case k == "net/ipv4/ip_forward" || k == "net/ipv6/conf/all/forwarding":
			return 0
		case strings.HasSuffix(k, "/accept_ra"):
			return 2
		}
		return 1
	}
	keys := slices.Sorted(maps.Keys(values))
	slices.SortStableFunc(keys, func(a, b string) int { return rank(a) - rank(b) })
	return keys
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
