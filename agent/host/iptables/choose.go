package iptables

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// chooseBackends picks the mode the host uses: kubelet's hint first, then the
// mode with more rules of others, then what plain `iptables` is. v6 is nil
// with a reason when ip6tables is missing or does not work.
func (find Find) chooseBackends() (v4, v6 *backend, noV6 string, err error) {
	modes := find.modes(false)
	if len(modes) == 0 {
		return nil, nil, "", ErrNoIPTables
	}
	type vote struct {
		hint  bool
		rules int
	}
	votes := map[string]vote{}
	var failures []error
	for _, b := range modes {
		rs, err := b.save()
		if err != nil {
			failures = append(failures, err)
			continue
		}
		v := vote{rs.hasHint(), rs.foreign()}
		if b6 := find.mode(true, b.mode); b6 != nil {
			if rs, err := b6.save(); err == nil {
				v.hint = v.hint || rs.hasHint()
				v.rules += rs.foreign()
			}
		}
		votes[b.mode] = v
	}
	for _, b := range modes { // the plain iptables' mode comes first
		v, ok := votes[b.mode]
		if !ok {
			continue
		}
		if best := votes[modeOf(v4)]; v4 == nil || v.hint && !best.hint || v.hint == best.hint && v.rules > best.rules {
			v4 = b
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

// Usable says whether this host has an iptables that works; it changes nothing. The
// error wraps ErrNoIPTables when there is none.
func Usable() error {
	_, _, _, err := Find(LookPath).chooseBackends()
	return err
}

func (find Find) chooseV6(mode string) (*backend, string) {
	b := find.mode(true, mode)
	if b == nil {
		return nil, "ip6tables is missing (apt install iptables)"
	}
	if _, err := b.save(); err != nil {
		return nil, "ip6tables does not work: " + err.Error()
	}
	if err := b.load(); err != nil {
		return nil, "ip6tables does not work: " + err.Error()
	}
	return b, ""
}

func modeOf(b *backend) string {
	if b == nil {
		return ""
	}
	return b.mode
}

// otherBackends lists the usable backends that are not in use.
func (find Find) otherBackends(inUse ...*backend) []*backend {
	var out []*backend
	for _, v6 := range []bool{false, true} {
		for _, b := range find.modes(v6) {
			used := false
			for _, u := range inUse {
				used = used || u != nil && u.v6 == v6 && u.mode == b.mode
			}
			if !used && b.load() == nil {
				out = append(out, b)
			}
		}
	}
	return out
}

// mode returns the binary of one mode, nil when there is none.
func (find Find) mode(v6 bool, mode string) *backend {
	for _, b := range find.modes(v6) {
		if b.mode == mode {
			return b
		}
	}
	return nil
}

// modes lists the binaries there are, at most one per mode; the one that
// plain iptables stands for comes first.
func (find Find) modes(v6 bool) []*backend {
	base := "iptables"
	if v6 {
		base = "ip6tables"
	}
	var out []*backend
	if plain := find(base); plain != "" {
		version, err := exec.Command(plain, "--version").Output()
		if err == nil {
			mode := modeLegacy
			if strings.Contains(string(version), "nf_tables") {
				mode = modeNFT
			}
			out = append(out, &backend{path: plain, mode: mode, v6: v6})
		}
	}
	for _, mode := range []string{modeNFT, modeLegacy} {
		if len(out) > 0 && out[0].mode == mode {
			continue
		}
		if p := find(base + "-" + mode); p != "" {
			out = append(out, &backend{path: p, mode: mode, v6: v6})
		}
	}
	return out
}

// Find finds a program by name; "" means there is none.
type Find func(name string) string

// LookPath finds a program in PATH or where system programs are; services may
// be started without the latter.
func LookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	return ""
}
