package resolve

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Mounted is where manifests mount what Config's Root has of the host: etc/resolv.conf and the directories of managed.
const Mounted = "/host"

const (
	confFile = "/etc/resolv.conf"
	// maxServers bounds those of all files; the C library takes 3 (resolv.conf(5), MAXNS).
	maxServers = 6
)

// managed is where NetworkManager, systemd-resolved (the servers of its links), resolvconf, netconfig (SUSE) and ConnMan write what
// holds now, also where /etc/resolv.conf is no link to it.
var managed = []string{"/run/NetworkManager/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/resolvconf/resolv.conf",
	"/run/netconfig/resolv.conf", "/run/connman/resolv.conf"}

// servers are the name servers of now, HOST:PORT, at least one. In a container, /etc/resolv.conf is a copy from when it began,
// and a file of the host's that was mounted is the old one once the host has replaced it: those come last.
func servers(root string) []string {
	var files, old []string
	if root != "" {
		at := filepath.Join(root, confFile)
		if replaced(at) {
			old = []string{at}
		} else {
			files = []string{at}
		}
		for _, m := range managed {
			files = append(files, filepath.Join(root, m))
		}
	}
	var out []string
	for _, file := range slices.Concat(files, old, []string{confFile}) {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && len(out) < maxServers {
				if at := net.JoinHostPort(f[1], "53"); !slices.Contains(out, at) {
					out = append(out, at)
				}
			}
		}
	}
	if len(out) == 0 {
		return []string{"127.0.0.1:53"} // resolv.conf(5)
	}
	return out
}

// outdated reports whether the mounted resolv.conf is one that the host has replaced since, and no manager's file has servers.
func outdated(root string) bool {
	return root != "" && replaced(filepath.Join(root, confFile)) && !slices.ContainsFunc(managed, func(m string) bool {
		b, _ := os.ReadFile(filepath.Join(root, m))
		return strings.Contains(string(b), "nameserver")
	})
}

// replaced reports whether a file has no name any longer except as the target of a mount.
func replaced(file string) bool {
	i, err := os.Stat(file)
	if err != nil {
		return false
	}
	s, ok := i.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 0
}
