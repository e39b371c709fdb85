package host

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// Sets keep the number of firewall rules constant, and lookups cheap.
const (
	// setLAN4 and setLAN6 hold (block, interface): sources of native and VXLAN peers
	// are accepted there, and nowhere else.
	setLAN4 = "edgemesh-lan4"
	setLAN6 = "edgemesh-lan6"
	// setVTEP4 and setVTEP6 hold the underlay addresses that may send us VXLAN.
	setVTEP4 = "edgemesh-vtep4"
	setVTEP6 = "edgemesh-vtep6"

	typeNetIface = "hash:net,iface"
	typeIP       = "hash:ip"
	maxSetSize   = 65536
)

// ipset is one wanted set.
type ipset struct {
	name, kind string
	v6         bool
	members    map[member]bool
}

// member is an entry of a set: a prefix and an interface, or a single address.
type member struct {
	prefix netip.Prefix
	link   string
}

func (m member) String() string {
	return strings.TrimSpace(m.prefix.String() + " " + m.link)
}

func (f family) setLAN() string {
	if f.v6 {
		return setLAN6
	}
	return setLAN4
}

func (f family) setVTEP() string {
	if f.v6 {
		return setVTEP6
	}
	return setVTEP4
}

// missingSets tells why the kernel has no sets, "" when it has.
func missingSets() string {
	if _, _, err := netlink.IpsetProtocol(); err != nil {
		return fmt.Sprintf("the kernel has no ipset (modprobe ip_set_hash_netiface ip_set_hash_ip xt_set): %v", err)
	}
	return ""
}

// sets lists those that the rules of fs refer to, empty.
func (fs families) sets() []ipset {
	var out []ipset
	for _, f := range fs.held() {
		if f.lan.on {
			out = append(out, ipset{f.setLAN(), typeNetIface, f.v6, map[member]bool{}})
		}
		if f.lan.vxlanPort != 0 {
			out = append(out, ipset{f.setVTEP(), typeIP, f.v6, map[member]bool{}})
		}
	}
	return out
}

// diffSetNames makes the sets that rules will refer to.
func diffSetNames(fs families) ([]change, error) {
	have, err := ourSets()
	if err != nil {
		return nil, err
	}
	var out []change
	for _, s := range fs.sets() {
		kind, ok := have[s.name]
		if ok && kind != s.kind {
			return nil, fmt.Errorf("ipset %s is a %s, not ours: %w", s.name, kind, ErrSetTaken)
		}
		if !ok {
			out = append(out, change{"create ipset " + s.name, func() error { return createSet(s) }})
		}
	}
	return out, nil
}

// diffSpareSets removes sets that no rule refers to any more.
func diffSpareSets(fs families) ([]change, error) {
	have, err := ourSets()
	if err != nil {
		return nil, err
	}
	for _, s := range fs.sets() {
		delete(have, s.name)
	}
	var out []change
	for _, name := range setNames() {
		if have[name] == kindOf(name) {
			out = append(out, change{"destroy ipset " + name, func() error { return netlink.IpsetDestroy(name) }})
		}
	}
	return out, nil
}

func createSet(s ipset) error {
	o := netlink.IpsetCreateOptions{Family: unix.AF_INET, MaxElements: maxSetSize, Counters: s.kind == typeNetIface}
	if s.v6 {
		o.Family = unix.AF_INET6
	}
	err := netlink.IpsetCreate(s.name, s.kind, o)
	if errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) {
		return nil
	}
	return err
}

// kindOf is the type of the set of ours with a name.
func kindOf(name string) string {
	if name == setVTEP4 || name == setVTEP6 {
		return typeIP
	}
	return typeNetIface
}

func setNames() []string { return []string{setLAN4, setLAN6, setVTEP4, setVTEP6} }

// ourSets returns the types of the existing sets with our names.
func ourSets() (map[string]string, error) {
	out := map[string]string{}
	if missingSets() != "" {
		return out, nil
	}
	for _, name := range setNames() {
		r, err := netlink.IpsetList(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list ipset %s: %w", name, err)
		}
		out[name] = r.TypeName
	}
	return out, nil
}

// wantSets are the members that w has for each set.
func wantSets(fs families, w mesh.Paths) map[string]map[member]bool {
	out := map[string]map[member]bool{}
	for _, s := range fs.sets() {
		switch s.kind {
		case typeNetIface:
			for _, a := range w.Accepts {
				if a.Block.Addr().Is6() == s.v6 && (a.Link != "" || fs.lan.VXLAN) {
					s.members[member{prefix: a.Block.Masked(), link: linkOf(a.Link)}] = true
				}
			}
		case typeIP:
			for _, v := range w.VTEPs {
				if v.Underlay.Is6() == s.v6 {
					s.members[member{prefix: netip.PrefixFrom(v.Underlay, v.Underlay.BitLen())}] = true
				}
			}
		}
		out[s.name] = s.members
	}
	return out
}

// diffSets compares the members of the sets.
func diffSets(have, want map[string]map[member]bool) []request {
	var out []request
	exists := nl.IPSetError(nl.IPSET_ERR_EXIST) // or, on deletion, does not
	for name, members := range want {
		for m := range members {
			if !have[name][m] {
				out = append(out, newRequest(fmt.Sprintf("add %s to ipset %s", m, name), exists, m.request(name, nl.IPSET_CMD_ADD)))
			}
		}
		for m := range have[name] {
			if !members[m] {
				out = append(out, newRequest(fmt.Sprintf("delete %s from ipset %s", m, name), exists, m.request(name, nl.IPSET_CMD_DEL)))
			}
		}
	}
	return out
}

// request is the message that adds m to a set or deletes it
// (linux/netfilter/ipset/ip_set.h).
func (m member) request(set string, command int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|command, unix.NLM_F_EXCL)
	version := nl.IPSET_ATTR_IPADDR_IPV4
	if m.prefix.Addr().Is6() {
		version = nl.IPSET_ATTR_IPADDR_IPV6
	}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(set)))
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|int(nl.NLA_F_NESTED), nil)
	ip := nl.NewRtAttr(nl.IPSET_ATTR_IP|int(nl.NLA_F_NESTED), nil)
	ip.AddRtAttr(version|int(nl.NLA_F_NET_BYTEORDER), m.prefix.Addr().AsSlice())
	data.AddChild(ip)
	if m.link != "" {
		data.AddRtAttr(nl.IPSET_ATTR_CIDR, nl.Uint8Attr(uint8(m.prefix.Bits())))
		data.AddRtAttr(nl.IPSET_ATTR_IFACE, nl.ZeroTerminated(m.link))
	}
	req.AddData(data)
	return req
}

func listSet(s ipset) (map[member]bool, error) {
	r, err := netlink.IpsetList(s.name)
	if err != nil {
		return nil, err
	}
	out := make(map[member]bool, len(r.Entries))
	for _, e := range r.Entries {
		a, ok := netip.AddrFromSlice(e.IP)
		if !ok {
			continue
		}
		bits := int(e.CIDR)
		if bits == 0 {
			bits = a.BitLen()
		}
		out[member{prefix: netip.PrefixFrom(a, bits), link: e.IFace}] = true
	}
	return out, nil
}

func removeSets() error {
	have, err := ourSets()
	if err != nil {
		return err
	}
	var errs []error
	for name, kind := range have {
		if kind == kindOf(name) {
			errs = append(errs, netlink.IpsetDestroy(name))
		}
	}
	return errors.Join(errs...)
}
