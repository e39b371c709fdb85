package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sysctlPath is the file of a sysctl. Keys have slashes, because interface
// names may have dots.
func sysctlPath(key string) string { return filepath.Join("/proc/sys", key) }

func readSysctl(key string) (string, error) {
	b, err := os.ReadFile(sysctlPath(key))
	return strings.TrimSpace(string(b)), err
}

// hostSysctls is where the manifests mount the host's /proc/sys/net a second
// time: a container's own /proc/sys is read-only unless it is privileged. What
// is written there is of the writer's network namespace too.
const hostSysctls = "/host/proc/sys"

func writeSysctl(key, value string) error {
	err := os.WriteFile(sysctlPath(key), []byte(value), 0)
	if errors.Is(err, unix.EROFS) {
		if os.WriteFile(filepath.Join(hostSysctls, key), []byte(value), 0) == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w (in a container that is not privileged, mount the host's /proc/sys/net at %s/net)", err, hostSysctls)
	}
	return nil
}

// sysctl is one wanted value. Kernels may lack an optional one.
type sysctl struct {
	key, value string
	optional   bool
}

func diffSysctls(want []sysctl) ([]change, error) {
	var out []change
	for _, s := range want {
		have, err := readSysctl(s.key)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read sysctl: %w", err)
		}
		if have != s.value {
			out = append(out, change{fmt.Sprintf("set %s from %s to %s", s.key, have, s.value), func() error {
				return writeSysctl(s.key, s.value)
			}})
		}
	}
	return out, nil
}

// diffLinkSysctls compares the sysctls of the bridge or the TUN. They are not
// remembered: they go with the interface.
func diffLinkSysctls(name string, fs families, tun bool) ([]change, error) {
	var want []sysctl
	if fs.each[0].wanted {
		filter, local, err := reverseFilter(name, fs.each[0])
		if err != nil {
			return nil, err
		}
		c := "net/ipv4/conf/" + name + "/"
		want = append(want,
			sysctl{c + "rp_filter", filter, false},
			sysctl{c + "accept_local", local, false},
			sysctl{c + "forwarding", "1", false},
			sysctl{c + "proxy_arp", "0", false},
		)
	}
	c := "net/ipv6/conf/" + name + "/"
	if !fs.each[1].wanted {
		// Nothing filters IPv6 then: pods shall not meet the host over it.
		want = append(want, sysctl{c + "disable_ipv6", "1", true})
		return diffSysctls(want)
	}
	want = append(want,
		sysctl{c + "disable_ipv6", "0", false},
		sysctl{c + "accept_ra", "0", false}, // a pod is no router
		sysctl{c + "autoconf", "0", false},
		sysctl{c + "accept_dad", "0", false},
		sysctl{c + "forwarding", "1", false},
		sysctl{c + "proxy_ndp", "0", false},
	)
	if tun {
		// No link-local address, no solicitations: nobody answers in a tunnel.
		want = append(want,
			sysctl{c + "addr_gen_mode", "1", true},
			sysctl{c + "router_solicitations", "0", false},
		)
	}
	return diffSysctls(want)
}

// reverseFilter is how the kernel checks sources that come in by an interface of ours. A path
// may change while the answer comes the old way, so loosely; the effective value is the
// larger one of `all` and the interface's. Where the guard has checked each source, not at
// all: it would look up the route back for each packet, with all policy rules, unless it is told
// that even its own addresses are welcome (the guard drops those).
func reverseFilter(name string, f family) (filter, local string, err error) {
	all, err := readSysctl("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return "", "", fmt.Errorf("read sysctl: %w", err)
	}
	guarded := f.lan.on && (name == BridgeName || name == VXLANName)
	switch {
	case !guarded:
		return "2", "0", nil
	case all != "0":
		return "2", "1", nil
	}
	return "0", "1", nil
}

// diffRouters keeps the default routes learnt from router advertisements. It
// comes before everything that switches IPv6 forwarding on, if only for one
// interface: the kernel forgets the routers of all interfaces then, except
// where accept_ra is 2, and the next advertisement may be minutes away.
func diffRouters(fs families, m *memory) ([]change, error) {
	if !fs.each[1].wanted {
		return nil, nil
	}
	want, err := routersToKeep(m)
	if err != nil {
		return nil, err
	}
	return diffRemembered(want, m)
}

// diffForwarding compares the host's own forwarding switches.
func diffForwarding(fs families, m *memory) ([]change, error) {
	var want []sysctl
	if fs.each[0].wanted {
		want = append(want, sysctl{"net/ipv4/ip_forward", "1", false})
	}
	if fs.each[1].wanted {
		want = append(want, sysctl{"net/ipv6/conf/all/forwarding", "1", false})
	}
	return diffRemembered(want, m)
}

// diffRemembered compares sysctls of the host. Every value is remembered on
// disk before it is changed.
func diffRemembered(want []sysctl, m *memory) ([]change, error) {
	var out []change
	for _, s := range want {
		changes, err := diffSysctls([]sysctl{s})
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			out = append(out, change{c.what, func() error {
				if err := m.remember(s.key); err != nil {
					return err
				}
				return c.do()
			}})
		}
	}
	return out, nil
}

// routersToKeep lists the interfaces whose router advertisements the host
// accepts now and would ignore as a router (accept_ra 1). Once forwarding is
// on, only hardware that came later is added: a modem plugged in today would
// have been heard without us, a container's interface never is.
func routersToKeep(m *memory) ([]sysctl, error) {
	forwarding, err := readSysctl("net/ipv6/conf/all/forwarding")
	if err != nil {
		return nil, fmt.Errorf("read sysctl: %w", err)
	}
	before := forwarding
	if v, ok, err := m.value("net/ipv6/conf/all/forwarding"); err != nil {
		return nil, err
	} else if ok {
		before = v
	}
	if before != "0" {
		return nil, nil
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []sysctl
	for _, l := range links {
		a := l.Attrs()
		ours := a.Name == BridgeName || a.Name == TUNName || a.Name == VXLANName
		if ours || a.Flags&net.FlagLoopback != 0 || a.MasterIndex != 0 {
			continue
		}
		if forwarding != "0" && l.Type() != "device" {
			continue
		}
		key := "net/ipv6/conf/" + a.Name + "/accept_ra"
		v, err := readSysctl(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // IPv6 is off on it, or it is gone
		}
		if err != nil {
			return nil, fmt.Errorf("read sysctl: %w", err)
		}
		if v == "1" {
			out = append(out, sysctl{key, "2", true})
		}
	}
	return out, nil
}
