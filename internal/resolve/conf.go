package resolve

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mounted is where manifests mount what Config's Root has of the host.
const Mounted = "/host"

const (
	confFile = "/etc/resolv.conf"
	// maxServers bounds the servers of a file; the C library takes 3 (resolv.conf(5), MAXNS).
	maxServers = 6
	// maxLinks bounds the symbolic links that lead to a file.
	maxLinks = 4
)

// servers are the name servers of now, HOST:PORT, at least one: those of the host, where its files are mounted below root,
// because a pod has a copy from when it began. systemd-resolved is among them by its stub, or by the servers of its links.
func servers(root string) []string {
	var out []string
	b, err := os.ReadFile(below(root, confFile))
	if err != nil {
		b, _ = os.ReadFile(confFile)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && len(out) < maxServers {
			if at := net.JoinHostPort(f[1], "53"); !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	if len(out) == 0 {
		out = []string{"127.0.0.1:53"} // resolv.conf(5)
	}
	return out
}

// below is where path is below root: absolute links mean the root of the host.
func below(root, path string) string {
	for range maxLinks {
		to, err := os.Readlink(filepath.Join(root, path))
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return filepath.Join(root, path)
}
