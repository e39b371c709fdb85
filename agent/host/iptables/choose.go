package iptables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// chooseBackends picks the mode that the host uses: the one with kubelet's hint, else the one with
// more foreign rules, else that of plain `iptables`. When ip6tables is missing or
// does not work, v6 is nil and noV6 says why.
func (find Find) chooseBackends() (v4, v6 *backend, noV6 string, err error) {
	modes := find.modes(false)
	if len(modes) == 0 {
		return nil, nil, "", fmt.Errorf("%w: %s", ErrNoIPTables, notFound("iptables"))
	}
	var bestHint bool
	var bestRules int
	var failures []error
	for _, b := range modes { // the plain iptables' mode comes first
		rs, err := b.save()
		if err != nil {
			failures = append(failures, err)
			continue
		}
		hint, rules := rs.hasHint(), rs.foreign()
		if b6 := find.mode(true, b.mode); b6 != nil {
			if rs, err := b6.save(); err == nil {
				hint, rules = hint || rs.hasHint(), rules+rs.foreign()
			}
		}
		if v4 == nil || hint && !bestHint || hint == bestHint && rules > bestRules {
			v4, bestHint, bestRules = b, hint, rules
		}
	}
	if v4 == nil {
		return nil, nil, "", fmt.Errorf("%w, or does not work here: %w", ErrNoIPTables, errors.Join(failures...))
	}
	if err := v4.load(); err != nil {
		return nil, nil, "", err
	}
	v6, noV6 = find.chooseV6(v4.mode)
	return v4, v6, noV6, nil
}

// Usable fails with ErrNoIPTables (wrapped) if this host has no iptables that works. It changes
// nothing.
func Usable() error {
	_, _, _, err := Find(LookPath).chooseBackends()
	return err
}

func (find Find) chooseV6(mode string) (*backend, string) {
	b := find.mode(true, mode)
	if b == nil {
		return nil, fmt.Sprintf("ip6tables is missing (apt install iptables): %s, of mode %s", notFound("ip6tables"), mode)
	}
	_, err := b.save()
	if err == nil {
		err = b.load()
	}
	if err != nil {
		return nil, "ip6tables does not work: " + err.Error()
	}
	return b, ""
}

// otherBackends lists the usable backends that are not in use.
func (find Find) otherBackends(inUse ...*backend) []*backend {
	return slices.DeleteFunc(append(find.modes(false), find.modes(true)...), func(b *backend) bool {
		used := slices.ContainsFunc(inUse, func(u *backend) bool { return u != nil && u.v6 == b.v6 && u.mode == b.mode })
		return used || b.load() != nil
	})
}

// mode returns the binary of one mode, nil when there is none.
func (find Find) mode(v6 bool, mode string) *backend {
	all := find.modes(v6)
	if i := slices.IndexFunc(all, func(b *backend) bool { return b.mode == mode }); i >= 0 {
		return all[i]
	}
	return nil
}

// modes lists the installed binaries, at most one per mode; the one that plain
// iptables is comes first.
func (find Find) modes(v6 bool) []*backend {
	base := "iptables"
	if v6 {
		base = "ip6tables"
	}
	var out []*backend
	if plain := find(base); plain != "" {
		if version, err := run(programTime, "", plain, "--version"); err == nil {
			mode := modeLegacy
			if strings.Contains(version, "nf_tables") {
				mode = modeNFT
			}
			out = append(out, &backend{path: plain, mode: mode, v6: v6})
		}
	}
	for _, mode := range []string{modeNFT, modeLegacy} {
		if p := find(base + "-" + mode); p != "" && (len(out) == 0 || out[0].mode != mode) {
			out = append(out, &backend{path: p, mode: mode, v6: v6})
		}
	}
	return out
}

// Programs makes, in dir, a directory for each backend that this host has rules of, with that backend's iptables and ip6tables, and returns
// them, that of ours first: what begins its PATH with one uses that backend under the usual names.
func (fw *Firewall) Programs(dir string) (out []string, err error) {
	if err := fw.choose(); err != nil {
		return nil, err
	}
	all := fw.find.modes(false)
	slices.SortStableFunc(all, func(a, b *backend) int { return fw.rank(a) - fw.rank(b) })
	for _, b := range all {
		if fw.rank(b) > 0 && b.mode == modeLegacy && !legacyInUse(false) && !legacyInUse(true) { // looking would make tables
			continue
		}
		at := filepath.Join(dir, b.mode)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, fmt.Errorf("programs of the backend %s: %w", b.mode, err)
		}
		for name, to := range map[string]*backend{"iptables": b, "ip6tables": fw.find.mode(true, b.mode)} {
			link := filepath.Join(at, name)
			if to == nil {
				continue
			}
			if now, err := os.Readlink(link); err == nil && now == to.path {
				continue
			}
			if err := errors.Join(os.RemoveAll(link), os.Symlink(to.path, link)); err != nil {
				return nil, fmt.Errorf("programs of the backend %s: %w", b.mode, err)
			}
		}
		out = append(out, at)
	}
	return out, nil
}

// rank is 0 for the backend of our chains.
func (fw *Firewall) rank(b *backend) int {
	if b.mode == fw.v4.mode {
		return 0
	}
	return 1
}

// Find returns a program's path, "" if there is none.
type Find func(name string) string

// beside are the system's directories, which a service's PATH may lack.
var beside = []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} //nolint:gochecknoglobals // a constant

// notFound says what was looked for, and where.
func notFound(base string) string {
	return fmt.Sprintf("found no %s, %s-%s or %s-%s that runs in PATH (%s) or in %s", base, base, modeNFT, base, modeLegacy,
		os.Getenv("PATH"), strings.Join(beside, ", "))
}

// LookPath finds a program in PATH or in the system's directories.
func LookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range beside {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}

// ErrNoIPTables means that no usable iptables was found.
var ErrNoIPTables = errors.New("iptables is missing (apt install iptables)")
