package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source is a runtime and its main configuration file.
type source struct {
	name string
	file string // "" if it has none
	crio bool
}

func (s source) read(h host) (CNI, error) {
	switch {
	case s.crio:
		return h.crio()
	case s.file == "":
		return CNI{host: h, Runtime: s.name, ConfDir: defaultConfDir, BinDirs: []string{defaultBinDir}}, nil
	}
	return h.containerd(s.name, s.file)
}

// A bundle is a distribution that brings a containerd of its own and writes its configuration
// when it starts. It writes none if it is configured for another runtime.
type bundle struct {
	name, file string
	started    string   // exists once it has started
	programs   []string // exist once it is installed
}

func bundles() []bundle {
	return []bundle{
		{"k3s", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent", []string{"/usr/local/bin/k3s", "/usr/bin/k3s"}},
		{"RKE2", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/var/lib/rancher/rke2/agent", []string{"/usr/local/bin/rke2", "/usr/bin/rke2"}},
		{"k0s", "/etc/k0s/containerd.toml", "/var/lib/k0s", []string{"/usr/local/bin/k0s", "/usr/bin/k0s"}},
	}
}

// containerdAt is a containerd with this configuration.
func containerdAt(file string) source {
	if i := slices.IndexFunc(bundles(), func(b bundle) bool { return b.file == file }); i >= 0 {
		return source{name: "containerd of " + bundles()[i].name, file: file}
	}
	return source{name: "containerd", file: file}
}

// running are the runtimes that run below the host's /proc. One whose configuration is not to be seen from here is in
// another mount namespace: a node in a container, not this one.
func (h host) running() []source {
	var out []source
	found, err := filepath.Glob(h.path("/proc/[0-9]*/cmdline"))
	if err != nil {
		return nil
	}
	slices.SortFunc(found, func(a, b string) int { return pid(a) - pid(b) })
	for _, p := range found {
		text, err := os.ReadFile(p)
		if err != nil {
			continue // the process has ended
		}
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		switch filepath.Base(args[0]) {
		case "containerd":
			s := containerdAt(configFlag(args))
			switch {
			case h.exists(s.file):
			case s.file == containerdConf:
				s.file = ""
			default:
				continue
			}
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		case "crio":
			out = append(out, source{crio: true})
		}
	}
	return out
}

// rank puts CRI-O first if kubelet is configured for it, else last.
func rank(s source, wanted bool) int {
	if s.crio == wanted {
		return 0
	}
	return 1
}

func pid(cmdline string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(cmdline))) // digits, by the pattern
	return n
}

// configFlag is the value of containerd's flag -c or --config.
func configFlag(args []string) string {
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		if name != "-c" && name != "--config" && name != "-config" {
			continue
		}
		if joined {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return containerdConf
}

// installed are the runtimes whose files are on the host. The error may be ErrNotYet.
func (h host) installed() ([]source, error) {
	for _, b := range bundles() {
		switch {
		case h.exists(b.file):
			return []source{containerdAt(b.file)}, nil
		case !h.exists(b.started) && slices.ContainsFunc(b.programs, h.exists):
			return nil, fmt.Errorf("%w: %s writes %s when it first starts", ErrNotYet, b.name, b.file)
		}
	}
	var out []source
	switch {
	case h.exists(containerdConf):
		out = append(out, containerdAt(containerdConf))
	case slices.ContainsFunc([]string{"/usr/bin/containerd", "/usr/local/bin/containerd"}, h.exists):
		out = append(out, containerdAt(""))
	}
	if h.exists(crioConf) || h.exists(crioDropIns) {
		out = append(out, source{crio: true})
	}
	return out, nil
}

// configuredFor reports whether kubelet's or edgecore's configuration names a socket.
func (h host) configuredFor(socket string) bool {
	files := []string{"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet",
		"/etc/sysconfig/kubelet", "/etc/kubeedge/config/edgecore.yaml"}
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(h.path(f))
		return err == nil && strings.Contains(string(text), socket)
	})
}
