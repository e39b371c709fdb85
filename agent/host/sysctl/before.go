package sysctl

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
)

// Before is what this host forwarded before us, since its last boot: a reboot takes our values away, so that it is found
// again.
type Before struct {
	On    [2]bool  `json:"on"`              // it forwarded IPv4, IPv6
	From  [2][]int `json:"from,omitempty"`  // else: interfaces whose packets it forwarded all the same, by index
	Links []int    `json:"links,omitempty"` // interfaces that were there, by index
}

// switches forward all packets of a family, and those of one interface.
var switches = [2]struct{ all, dir string }{
	{"net/ipv4/ip_forward", "net/ipv4/conf/"},
	{"net/ipv6/conf/all/forwarding", "net/ipv6/conf/"},
}

// Before returns what is remembered or, until DiffBefore's change is made, what is so now. links are those of others.
func (m *Memory) Before(links []netlink.Link) (Before, error) {
	r, err := m.all()
	if err != nil {
		return Before{}, err
	}
	b, err := r.before(links)
	if err != nil {
		return b, err
	}
	return r.narrowed(b, links), nil
}

// narrowed is b where forwarding of IPv4 was on for the host and off for some interfaces alone: what came in there was not forwarded.
func (r record) narrowed(b Before, links []netlink.Link) Before {
	if !b.On[0] {
		return b
	}
	all, _ := Read(switches[0].all)
	var from []int
	for _, l := range links {
		v, _ := Read(Forwarding(l.Attrs().Name))
		if !slices.Contains(r.Closed, l.Attrs().Index) && (all != "1" || v != "0") {
			from = append(from, l.Attrs().Index)
		}
	}
	if len(from) < len(links) {
		b.On[0], b.From[0] = false, from
	}
	return b
}

func (r record) before(links []netlink.Link) (b Before, err error) {
	if r.Before != nil {
		return *r.Before, nil
	}
	ours := false // an agent that did not remember this has changed something
	for i, s := range switches {
		v, known := r.Values[s.all]
		if !known {
			if v, err = Read(s.all); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return b, err
			}
		}
		b.On[i], ours = v != "0" && v != "", ours || known
	}
	if ours {
		return b, nil
	}
	for _, l := range links {
		b.Links = append(b.Links, l.Attrs().Index)
		for i, s := range switches {
			if v, _ := Read(s.dir + l.Attrs().Name + "/forwarding"); v == "1" && !b.On[i] {
				b.From[i] = append(b.From[i], l.Attrs().Index)
			}
		}
	}
	return b, nil
}

// DiffBefore remembers what the host forwards, unless that is known. It comes before anything that switches forwarding on.
func (m *Memory) DiffBefore(links []netlink.Link) ([]plan.Change, error) {
	r, err := m.all()
	if r.Before != nil || err != nil {
		return nil, err
	}
	return []plan.Change{{What: "remember what this host forwards", Do: func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		r, err := m.load()
		if err != nil {
			return err
		}
		b, err := r.before(links)
		if err != nil {
			return err
		}
		r.Before = &b
		return m.save(r)
	}}}, nil
}

// LinkNames returns the names of interfaces with these indexes.
func LinkNames(links []netlink.Link, indexes []int) (out []string) {
	for _, l := range links {
		if slices.Contains(indexes, l.Attrs().Index) {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}
