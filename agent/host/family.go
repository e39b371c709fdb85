package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/mesh"
)

// family is what is wanted of one IP version.
type family struct {
	v6      bool
	wanted  bool           // false: nothing of ours may be left in this family
	blocks  []netip.Prefix // own blocks
	ranges  []netip.Prefix // the cluster's ranges
	gateway netip.Addr     // of the first own block; invalid when there is none
	keep    bool           // another plugin has the pods; gateway is the node's address among them, if any
	absent  bool           // the kernel does not know this family at all
	lan     lan
}

// families is the wanted state, IPv4 first.
type families struct {
	each    [2]family
	mtu     int      // bytes
	keep    bool     // as in mesh.Host
	promisc bool     // as in mesh.Host
	lan     mesh.LAN // what of it this host can hold

	uncounted bool // as in lanState
}

func (f family) id() int {
	if f.v6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// gateways are the node's addresses in its blocks, with their prefix lengths.
func (f family) gateways() []netip.Prefix {
	var out []netip.Prefix
	switch {
	case !f.keep:
		for _, b := range f.blocks {
			out = append(out, blockGateway(b))
		}
	case f.gateway.IsValid():
		out = append(out, netip.PrefixFrom(f.gateway, f.gateway.BitLen()))
	}
	return out
}

// held lists the families the kernel has.
func (fs families) held() []family {
	if fs.each[1].absent {
		return fs.each[:1]
	}
	return fs.each[:]
}

// split sorts the plan by IP version. haveIPv6 says whether the host can hold
// IPv6 state at all.
func split(w mesh.Host, haveIPv6 bool) (families, error) {
	if len(w.Blocks) == 0 {
		return families{}, ErrNoBlock
	}
	out := families{mtu: w.MTU}
	out.each[1].v6 = true
	at := func(p netip.Prefix) *family {
		if p.Addr().Is4() {
			return &out.each[0]
		}
		return &out.each[1]
	}
	for _, p := range w.Blocks {
		f := at(p)
		f.blocks = append(f.blocks, p.Masked())
		if !f.gateway.IsValid() {
			f.gateway = mesh.Gateway(p)
		}
	}
	for _, p := range w.ClusterCIDRs {
		f := at(p)
		f.ranges = append(f.ranges, p.Masked())
	}
	for i := range out.each {
		f := &out.each[i]
		f.wanted = len(f.blocks)+len(f.ranges) > 0
	}
	if !haveIPv6 {
		out.each[1] = family{v6: true}
	}
	if !out.each[0].wanted && !out.each[1].wanted {
		return families{}, fmt.Errorf("%w: only IPv6 blocks, and this host has no usable IPv6", ErrNoBlock)
	}
	return out, nil
}

// families splits w by IP version. A host without usable IPv6 gets IPv4 alone;
// the log says so once.
func (h *Host) families(w mesh.Host) (families, error) {
	why, err := missingIPv6()
	if err != nil {
		return families{}, err
	}
	if err := h.fw.open(); err != nil {
		return families{}, err
	}
	if why == "" && h.fw.v6 == nil {
		why = h.fw.noV6
	}
	fs, err := split(w, why == "")
	if err != nil {
		return families{}, err
	}
	fs.each[1].absent = !exists("net/ipv6")
	fs.keep, fs.promisc = w.Keep, w.Promisc
	for i := range fs.each {
		if f := &fs.each[i]; w.Keep && f.wanted {
			if err := f.keepFamily(); err != nil {
				return families{}, err
			}
		}
	}
	if err := h.planLAN(&fs, w.LAN); err != nil {
		return families{}, err
	}
	if why != h.noIPv6 {
		h.noIPv6 = why
		if why != "" && wantsIPv6(w) {
			h.log.Warn("pods of this node get no IPv6", "reason", why)
		}
	}
	return fs, nil
}

func wantsIPv6(w mesh.Host) bool {
	for _, p := range w.Blocks {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}

// missingIPv6 tells why the kernel cannot be used for IPv6, "" when it can.
func missingIPv6() (string, error) {
	v, err := readSysctl("net/ipv6/conf/all/disable_ipv6")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the kernel has no IPv6", nil
	case err != nil:
		return "", err
	case v != "0":
		return "the sysctl net.ipv6.conf.all.disable_ipv6 is " + v, nil
	}
	return "", nil
}

// exists reports whether a sysctl exists.
func exists(key string) bool {
	_, err := os.Stat(sysctlPath(key))
	return err == nil
}
