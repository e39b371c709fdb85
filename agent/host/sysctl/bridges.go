package sysctl

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// bridges are br_netfilter's switches for all bridges of a network namespace. A bridge has two of its own beside them.
var bridges = []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-arptables"} //nolint:gochecknoglobals // a constant

// settings are the files in which an operator or a distribution sets sysctls (sysctl.d(5)).
var settings = []string{"/etc/sysctl.conf", "/etc/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/usr/local/lib/sysctl.d/*.conf", "/usr/lib/sysctl.d/*.conf", "/lib/sysctl.d/*.conf"} //nolint:gochecknoglobals // a constant

// BridgeFilter reports whether br_netfilter is loaded.
func BridgeFilter() bool {
	_, err := Read(bridges[0])
	return err == nil
}

// LoadBridgeFilter calls load, which loads br_netfilter. That module starts with its switches on, for the bridges of other
// programs, too, whose frames no rule has met until then: they are switched off again, except those that settings set: udev applies
// these when the module is loaded, maybe before.
func LoadBridgeFilter(load func() error) error {
	if BridgeFilter() {
		return nil
	}
	errs := []error{load()}
	for _, key := range bridges {
		if v, err := Read(key); err == nil && v != "0" && !configured(key) {
			errs = append(errs, write(key, "0"))
		}
	}
	return errors.Join(errs...)
}

// configured reports whether settings name a key.
func configured(key string) bool {
	for _, pattern := range settings {
		files, _ := filepath.Glob(pattern) // of a constant
		if slices.ContainsFunc(files, func(file string) bool {
			b, err := os.ReadFile(file)
			return err == nil && sets(string(b), key)
		}) {
			return true
		}
	}
	return false
}

// sets reports whether a file for sysctls has a line for a key: with dots or slashes, wildcards, and "-" where errors are ignored.
func sets(text, key string) bool {
	for line := range strings.Lines(text) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") || strings.HasPrefix(name, ";") {
			continue
		}
		name = strings.TrimSpace(strings.TrimPrefix(name, "-"))
		if !strings.Contains(name, "/") {
			name = strings.ReplaceAll(name, ".", "/")
		}
		if named, err := path.Match(name, key); named && err == nil {
			return true
		}
	}
	return false
}
