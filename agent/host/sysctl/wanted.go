package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/membership/mesh"
)

// setting is one wanted value. Kernels may lack an optional one.
type setting struct {
	key, value string
	optional   bool
}

// diff compares. Values of the host are remembered in m before they are changed. For
// interfaces of ours m is nil: their values are deleted with them.
func diff(want []setting, m *Memory) ([]plan.Change, error) {
	var out []plan.Change
	for _, s := range want {
		have, err := Read(s.key)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if have != s.value {
			out = append(out, plan.Change{What: fmt.Sprintf("set %s from %s to %s", s.key, have, s.value), Do: func() error {
				if m != nil {
					if err := m.remember(s.key); err != nil {
						return err
					}
				}
				return write(s.key, s.value)
			}})
		}
	}
	return out, nil
}

// DiffLink compares the sysctls of an interface of ours. They are not remembered: they
// are deleted with the interface.
func DiffLink(name string, s plan.State, tun bool) ([]plan.Change, error) {
	want := answers(name, s, "net/ipv4", podlink.RoutedKey(name)) // also where all pods have IPv6 alone: it says that the host forwards
	if s.Each[0].Wanted {
		filter, local, err := reverseFilter(name, s.Each[0])
		if err != nil {
			return nil, err
		}
		c := "net/ipv4/conf/" + name + "/"
		want = append(want,
			setting{c + "rp_filter", filter, false},
			setting{c + "accept_local", local, false},
			setting{c + "forwarding", "1", false},
			setting{c + "proxy_arp", "0", false},
		)
	}
	c := "net/ipv6/conf/" + name + "/"
	if !s.Each[1].Wanted {
		// Nothing filters IPv6 here, so pods must not reach the host over it.
		want = append(want, setting{c + "disable_ipv6", "1", true})
		return diff(want, nil)
	}
	want = append(want,
		setting{c + "disable_ipv6", "0", false},
		setting{c + "accept_ra", "0", false}, // a pod is not a router
		setting{c + "autoconf", "0", false},
		setting{c + "accept_dad", "0", false},
		setting{c + "forwarding", "1", false},
	)
	want = append(want, answers(name, s, "net/ipv6", c+"proxy_ndp")...)
	if tun {
		// No link-local address, no solicitations: no router answers in a tunnel.
		want = append(want,
			setting{c + "addr_gen_mode", "1", true},
			setting{c + "router_solicitations", "0", false},
		)
	}
	return diff(want, nil)
}

// answers is whether the host answers pods' requests for each other's MAC with its own (key), and without the kernel's random delay.
func answers(name string, s plan.State, family, key string) []setting {
	if !s.Routed || name != plan.BridgeName {
		return []setting{{key, "0", false}}
	}
	return []setting{{family + "/neigh/" + name + "/proxy_delay", "0", true}, {key, "1", false}}
}

// DiffPod compares what the plugin sets for the host's end of a pod's interface.
func DiffPod(name string) ([]plan.Change, error) {
	return diff([]setting{{"net/ipv6/conf/" + name + "/disable_ipv6", "1", true}}, nil)
}

// reverseFilter returns rp_filter and accept_local for an interface of ours. Loose, because an answer
// may still take the old path after a change; the effective value is the larger of
// `all` and the interface's. Off where the guard has checked each source: the kernel would look up
// the return route of each packet, through all policy rules, unless accept_local says
// that its own addresses are welcome, too (the guard drops those).
func reverseFilter(name string, f plan.Family) (filter, local string, err error) {
	all, err := Read("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return "", "", err
	}
	guarded := f.LAN.On && (name == plan.BridgeName || name == plan.VXLANName)
	switch {
	case !guarded:
		return "2", "0", nil
	case all != "0":
		return "2", "1", nil
	}
	return "0", "1", nil
}

// DiffRouters keeps the default routes learnt from router advertisements: it sets accept_ra to 2 where
// it is 1, which a router ignores. It comes before anything that switches IPv6
// forwarding on, even for one interface: the kernel then forgets the routers of all
// interfaces, except where accept_ra is 2, and the next advertisement may be minutes away. Once
// forwarding is on, only new hardware is added: without us the host would have listened to
// a modem plugged in today, but never to a container's interface.
func DiffRouters(s plan.State, links []netlink.Link, m *Memory) ([]plan.Change, error) {
	if !s.Each[1].Wanted {
		return nil, nil
	}
	forwarding, err := Read("net/ipv6/conf/all/forwarding")
	if err != nil {
		return nil, err
	}
	before, err := m.all()
	if err != nil || cmp.Or(before.Values["net/ipv6/conf/all/forwarding"], forwarding) != "0" {
		return nil, err
	}
	var want []setting
	for _, l := range links {
		a := l.Attrs()
		if plan.OurLink(a.Name) || a.Flags&net.FlagLoopback != 0 || a.MasterIndex != 0 || forwarding != "0" && l.Type() != "device" {
			continue
		}
		key := "net/ipv6/conf/" + a.Name + "/accept_ra"
		v, err := Read(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has no IPv6, or it is gone
		}
		if err != nil {
			return nil, err
		}
		if v == "1" {
			want = append(want, setting{key, "2", true})
		}
	}
	return diff(want, m)
}

// Forwarding returns the key of one interface's switch: where it is off, no IPv4 packet that comes in there reaches a pod. IPv6 knows the host's
// switch alone.
func Forwarding(link string) string { return "net/ipv4/conf/" + link + "/forwarding" }

// DiffForwarding compares the host's own forwarding switches, and those of the interfaces by which pods reach other networks.
func DiffForwarding(s plan.State, exits []string, m *Memory) ([]plan.Change, error) {
	var want []setting
	if s.Each[0].Wanted {
		want = append(want, setting{"net/ipv4/ip_forward", "1", false})
	}
	if s.Each[1].Wanted {
		want = append(want, setting{"net/ipv6/conf/all/forwarding", "1", false})
	}
	out, err := diff(want, m)
	if err != nil || !s.Each[0].Wanted {
		return out, err
	}
	ones, err := diffForwardingOf(exits, m)
	return append(out, ones...), err
}

// diffForwardingOf compares the switches of single interfaces, and remembers which were off by themselves: what comes in there goes to pods
// alone.
func diffForwardingOf(links []string, m *Memory) ([]plan.Change, error) {
	all, err := Read(switches[0].all)
	if err != nil {
		return nil, err
	}
	var out []plan.Change
	for _, name := range links {
		one, err := diff([]setting{{Forwarding(name), "1", true}}, m)
		if err != nil {
			return nil, err
		}
		if len(one) > 0 && len(SetBack([]string{name}, m)) > 0 {
			continue
		}
		for _, c := range one {
			do := c.Do
			c.Do = func() error {
				if all == "1" {
					if err := m.noteClosed(name); err != nil {
						return err
					}
				}
				return do()
			}
			out = append(out, c)
		}
	}
	return out, nil
}

// SetBack lists those of some interfaces whose forwarding the agent switched on once, and another program off again: that stays, as the host wants it.
func SetBack(links []string, m *Memory) (out []string) {
	r, _ := m.all() // what cannot be read cannot be changed either
	if all, _ := Read(switches[0].all); all != "1" {
		return nil
	}
	for _, name := range links {
		v, _ := Read(Forwarding(name))
		if link, err := net.InterfaceByName(name); err == nil && v == "0" && slices.Contains(r.Closed, link.Index) {
			out = append(out, name)
		}
	}
	return out
}

// noteClosed remembers an interface that was off while the host forwarded.
func (m *Memory) noteClosed(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.load()
	if err != nil || slices.Contains(r.Closed, link.Index) {
		return err
	}
	r.Closed = append(r.Closed, link.Index)
	return m.save(r)
}

// DiffUplinks has uplinks of native paths forward, and makes strict reverse-path filtering loose there: a peer's
// packets may arrive natively while ours still take the tunnel. The guard checks the cluster's
// own sources. Where look is true, uplinks that no candidate uses any longer get their
// former value back.
func DiffUplinks(s plan.State, w mesh.Paths, m *Memory, look bool) ([]plan.Change, error) {
	all, err := Read("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return nil, err
	}
	const loose = "2"
	var want []setting
	var links []string
	used := map[string]bool{}
	for _, a := range w.Probes {
		key := RPFilter(a.Link)
		if !s.Each[0].LAN.On || a.Link == "" || used[key] {
			continue
		}
		used[key] = true
		links = append(links, a.Link)
		one, err := Read(key)
		if err != nil {
			continue // the interface is gone, and the path soon will be
		}
		if max(all, one) == "1" {
			want = append(want, setting{key, loose, true})
		}
	}
	out, err := diffForwardingOf(links, m)
	if err != nil {
		return nil, err
	}
	loosened, err := diff(want, m)
	if out = append(out, loosened...); err != nil || !look {
		return out, err
	}
	r, err := m.all()
	if err != nil {
		return nil, err
	}
	for key, value := range r.Values {
		if _, rest, ok := cutLink(key); ok && rest[1] == "rp_filter" && !used[r.now(key)] {
			out = append(out, plan.Change{What: fmt.Sprintf("restore %s to %s", r.now(key), value), Do: func() error { return m.giveBack(key, loose) }})
		}
	}
	return out, nil
}

// RPFilter returns the key of reverse-path filtering on an interface.
func RPFilter(link string) string { return "net/ipv4/conf/" + link + "/rp_filter" }
