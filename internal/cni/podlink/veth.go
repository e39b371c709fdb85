package podlink

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/fault"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/wording"
)

// Addr is one address of a pod with its gateway.
type Addr struct {
	Prefix  netip.Prefix // the address with its block's length
	Gateway netip.Addr
}

// Pod is the wanted state of one attachment.
type Pod struct {
	Owner ipam.Owner
	Addrs []Addr // one per family; the first gives the MAC
	MTU   int    // bytes
	Store string // dataDir, where its records are
	// Ranges are the cluster's: they lead through this interface where another one has the default route.
	Ranges []netip.Prefix
}

// Route is one of the pod's.
type Route struct {
	To      netip.Prefix
	Gateway netip.Addr
}

// MAC is the pod's hardware address. It is derived from the IPv4 address if there is one,
// so that it does not depend on the order of the node's blocks.
func (p Pod) MAC() net.HardwareAddr {
	ips := p.IPs()
	return conf.PodMAC(ips[max(0, slices.IndexFunc(ips, netip.Addr.Is4))])
}

// IPs lists the pod's bare addresses.
func (p Pod) IPs() []netip.Addr {
	var out []netip.Addr
	for _, a := range p.Addrs {
		out = append(out, a.Prefix.Addr())
	}
	return out
}

// HostName is the name of the host end of an attachment's veth pair. It is derived from
// the attachment, so that DEL finds it without stored state.
func HostName(o ipam.Owner) string {
	sum := ownerSum(o)
	return HostPrefix + nameCode.EncodeToString(sum[:])[:unix.IFNAMSIZ-1-len(HostPrefix)]
}

// formerName is the one that releases up to 0.2 gave it: biosdevname names network cards the same way, and they are configured.
func formerName(o ipam.Owner) string {
	sum := ownerSum(o)
	return "em" + hex.EncodeToString(sum[:6])
}

func ownerSum(o ipam.Owner) [sha256.Size]byte {
	return sha256.Sum256([]byte(o.Network + "\x00" + o.ContainerID + "\x00" + o.IfName))
}

var nameCode = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant

// hostEnd finds the host end of an attachment, under either name. The error may be a netlink.LinkNotFoundError.
func hostEnd(o ipam.Owner) (netlink.Link, error) {
	link, err := netlink.LinkByName(HostName(o))
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		if former, err := netlink.LinkByName(formerName(o)); err == nil {
			return former, nil
		}
	}
	return link, err
}

const (
	// HostPrefix begins the names of host ends. Programs that configure whatever interface they find leave alone what begins
	// with veth, or can be made to; the letter m sets ours apart from those of others, which have hexadecimal digits there.
	HostPrefix = "vethem"
	tagBytes   = 4
	// MaxNames bounds a container's ID and the name of its network together, in bytes. Both
	// are in an interface's alias, which has at most 255 bytes (IFALIASZ - 1); the rest of
	// it is subtracted at its longest.
	MaxNames = 255 - len(conf.PodAlias) - len("255.255.255.255,") - 39 - len(" ") - (unix.IFNAMSIZ - 1) -
		len("   ") - 2*tagBytes
)

// storeTag is the part of an alias that identifies the store with the records.
func storeTag(dataDir string) string {
	if abs, err := filepath.Abs(dataDir); err == nil { // an operator may give a relative one
		dataDir = abs
	}
	sum := sha256.Sum256([]byte(dataDir))
	return hex.EncodeToString(sum[:tagBytes])
}

// alias names the pod on its host interface, for operators and for Living.
func alias(p Pod) string {
	return conf.PodAlias + strings.Join([]string{strings.Join(wording.Texts(p.IPs()), ","),
		p.Owner.IfName, p.Owner.ContainerID, p.Owner.Network, storeTag(p.Store)}, " ")
}

type aliased struct {
	owner ipam.Owner
	ips   []netip.Addr
	store string // empty if the alias does not have it
}

func parseAlias(s string) (aliased, bool) {
	rest, ok := strings.CutPrefix(s, conf.PodAlias)
	f := strings.Split(rest, " ")
	if !ok || len(f) < 3 {
		return aliased{}, false
	}
	var a aliased
	for _, s := range strings.Split(f[0], ",") {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return aliased{}, false
		}
		a.ips = append(a.ips, ip)
	}
	a.owner = ipam.Owner{IfName: f[1], ContainerID: f[2]}
	if len(f) > 3 {
		a.owner.Network = f[3]
	}
	if len(f) > 4 {
		a.store = f[4]
	}
	return a, true
}

// ErrAttached means that the container already has the interface.
var ErrAttached = errors.New("the container is already attached")

// Attached reports whether the attachment exists and was started: another ADD for it must
// leave it alone. One that a failed ADD left unfinished does not count.
func Attached(o ipam.Owner) (bool, error) {
	l, err := hostEnd(o)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find interface %s: %w", HostName(o), err)
	}
	return Started(l)
}

// Started reports whether Start set a host end up, even if another program has set it down since.
func Started(l netlink.Link) (bool, error) {
	if l.Attrs().Flags&net.FlagUp != 0 {
		return true, nil
	}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.AddData(msg)
	answer, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if errors.Is(err, unix.ENODEV) || err == nil && len(answer) != 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at interface %s: %w", l.Attrs().Name, err)
	}
	attrs, err := nl.ParseRouteAttrAsMap(answer[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return false, fmt.Errorf("attributes of interface %s: %w", l.Attrs().Name, err)
	}
	ups := attrs[unix.IFLA_CARRIER_UP_COUNT].Value // a veth has a carrier once both ends are up
	return len(ups) == 4 && nl.NativeEndian().Uint32(ups) > 0, nil
}

// Create creates the pod's veth pair, attaches the host end to br without setting it up,
// and sets the pod's end up in netns. No packet passes before Start. It first removes a
// left-over host end of the same attachment. The error wraps ErrAttached if netns already
// has an interface of that name. hairpin sets the port's mode; filter attaches the source
// filter. routes are the default ones; where another interface has that of an IP version, this one's holds for packets from its address
// alone, and routes are those to the cluster's ranges.
func Create(p Pod, br netlink.Link, netns ns.NetNS, hairpin bool, filter func(netlink.Link) error) (host netlink.Link, routes []Route, err error) {
	name := HostName(p.Owner)
	if err := remove(p.Owner); err != nil {
		return nil, nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, p.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = p.Owner.IfName, p.MAC(), uint32(p.MTU)
	veth.PeerNamespace = netlink.NsFd(netns.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%w: it has an interface of that name", ErrAttached)
		}
		return nil, nil, fmt.Errorf("create veth pair %s, %s: %w", name, p.Owner.IfName, err)
	}
	fault.Point("veth")
	host, err = netlink.LinkByName(name)
	if err == nil {
		err = configureHost(p, host, br, hairpin, filter)
	}
	if err == nil {
		err = netns.Do(func(ns.NetNS) (err error) {
			routes, err = configurePod(p)
			return err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, remove(p.Owner))
	}
	return host, routes, nil
}

func configureHost(p Pod, host, br netlink.Link, hairpin bool, filter func(netlink.Link) error) error {
	if err := netlink.LinkSetAlias(host, alias(p)); err != nil {
		return fmt.Errorf("name %s: %w", host.Attrs().Name, err)
	}
	fault.Point("alias")
	// If the bridge is removed, the host itself must not answer on the bare end.
	if err := setSysctl("net/ipv6/conf/"+host.Attrs().Name+"/disable_ipv6", "1"); err != nil {
		return err
	}
	if err := filter(host); err != nil {
		return err
	}
	fault.Point("filter")
	if err := plug(host, br, hairpin); err != nil {
		return fmt.Errorf("attach %s to %s: %w", host.Attrs().Name, br.Attrs().Name, err)
	}
	if Routed(br.Attrs().Name) {
		return apart(p, host, br)
	}
	return nil
}

// configurePod runs inside the pod's namespace.
func configurePod(p Pod) (routes []Route, err error) {
	link, err := netlink.LinkByName(p.Owner.IfName)
	if err != nil {
		return nil, fmt.Errorf("find %s in the container: %w", p.Owner.IfName, err)
	}
	v6 := "net/ipv6/conf/" + p.Owner.IfName + "/"
	sysctls := [][2]string{
		{v6 + "accept_ra", "0"},     // the default route is set here
		{v6 + "accept_dad", "0"},    // the store makes addresses unique, so nobody waits
		{v6 + "addr_gen_mode", "0"}, // the filter lets the MAC's link-local address through
	}
	for _, a := range p.Addrs {
		if a.Prefix.Addr().Is6() {
			sysctls = append(sysctls, [2]string{v6 + "disable_ipv6", "0"})
		}
	}
	for _, s := range sysctls {
		if err := setSysctl(s[0], s[1]); err != nil {
			return nil, fmt.Errorf("in the container: %w", err)
		}
	}
	for _, a := range p.Addrs {
		addr := &netlink.Addr{IPNet: IPNet(a.Prefix)}
		if a.Prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return nil, fmt.Errorf("add %s to %s in the container: %w", a.Prefix, p.Owner.IfName, err)
		}
		fault.Point("address")
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up in the container: %w", p.Owner.IfName, err)
	}
	fault.Point("pod's end up")
	for _, a := range p.Addrs {
		further, err := route(link, a)
		if err != nil {
			return nil, fmt.Errorf("default route through %s in the container: %w", a.Gateway, err)
		}
		if !further {
			routes = append(routes, Route{netip.PrefixFrom(unspecified(a.Gateway), 0), a.Gateway})
		} else {
			inside, err := routeRanges(link, a, p.Ranges)
			if err != nil {
				return nil, fmt.Errorf("routes to the cluster's ranges through %s in the container: %w", a.Gateway, err)
			}
			routes = append(routes, inside...)
		}
		fault.Point("route")
	}
	return routes, nil
}

// furtherTable, plus an interface's index, is the table with the default route of a pod's further interface in this network.
const furtherTable = 5300

// What leaves from an address takes its own interface; of the rest, what is for the cluster's ranges takes ours. The kernel's own rules
// come later.
const (
	fromRule = 5300 + iota
	mainRule // main's routes but its default one
	rangeRule
)

// route adds the default route of one address. In a pod that has one already, the answers of this address alone take it (further).
func route(link netlink.Link, a Addr) (further bool, err error) {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: DefaultRoute(a.Gateway), Gw: a.Gateway.AsSlice()}
	if err := netlink.RouteAdd(r); !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	if a.Gateway.Is4() {
		if err := setSysctl("net/ipv4/conf/"+link.Attrs().Name+"/rp_filter", "2"); err != nil { // the way back to most sources is the other interface's
			return true, err
		}
	}
	r.Table = furtherTable + link.Attrs().Index
	near := &netlink.Route{LinkIndex: r.LinkIndex, Dst: IPNet(a.Prefix.Masked()), Scope: netlink.SCOPE_LINK, Table: r.Table}
	if err := errors.Join(netlink.RouteReplace(near), netlink.RouteReplace(r)); err != nil {
		return true, err
	}
	return true, addRule(fromRule, r.Table, a.Gateway.Is6(), func(x *netlink.Rule) { x.Src = host(a.Prefix.Addr()) })
}

func host(a netip.Addr) *net.IPNet { return IPNet(netip.PrefixFrom(a, a.BitLen())) }

// addRule has packets look up a table; of says which.
func addRule(priority, table int, v6 bool, of func(*netlink.Rule)) error {
	r := netlink.NewRule()
	r.Priority, r.Table, r.Family = priority, table, netlink.FAMILY_V4
	if v6 {
		r.Family = netlink.FAMILY_V6
	}
	of(r)
	if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule %d: %w", priority, err)
	}
	return nil
}

// routeRanges has what the pod itself sends to other pods of the cluster leave through this interface, which has not the default route,
// except to a range of which another interface has a route: that is another network's; and where another one has an address of this network,
// it stays with all. What leaves from another interface's address, as its answers do, stays on that.
func routeRanges(link netlink.Link, a Addr, ranges []netip.Prefix) (out []Route, _ error) {
	family, v6 := netlink.FAMILY_V4, a.Gateway.Is6()
	if v6 {
		family = netlink.FAMILY_V6
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
	if err != nil {
		return nil, err
	}
	addrs = slices.DeleteFunc(addrs, func(x netlink.Addr) bool {
		return x.LinkIndex == link.Attrs().Index || x.Scope != unix.RT_SCOPE_UNIVERSE
	})
	have, err := Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if slices.ContainsFunc(addrs, func(x netlink.Addr) bool { return IPNet(r).Contains(x.IP) }) {
			return nil, nil
		}
		if r.Addr().Is6() == v6 && !slices.ContainsFunc(have, func(x netlink.Route) bool { return x.LinkIndex != link.Attrs().Index && overlaps(x.Dst, r) }) {
			out = append(out, Route{r, a.Gateway})
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	// What another interface gets later is more special than a range.
	if err := addRule(mainRule, unix.RT_TABLE_MAIN, v6, func(x *netlink.Rule) { x.SuppressPrefixlen = 0 }); err != nil {
		return nil, err
	}
	for _, r := range out {
		err := addRule(rangeRule, furtherTable+link.Attrs().Index, v6, func(x *netlink.Rule) {
			if x.Dst = IPNet(r.To); !v6 {
				x.Src = host(netip.IPv4Unspecified()) // that has no address yet
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if !v6 {
		return out, nil
	}
	// A rule of IPv6 cannot ask for that.
	rules, err := Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
	if err != nil {
		return nil, err
	}
	for _, x := range addrs {
		if slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Src != nil && r.Src.IP.Equal(x.IP) }) {
			continue
		}
		if err := addRule(fromRule, unix.RT_TABLE_MAIN, v6, func(r *netlink.Rule) { r.Src = &net.IPNet{IP: x.IP, Mask: net.CIDRMask(128, 128)} }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// overlaps reports whether a route's destination, other than a default route's, has a part of r.
func overlaps(dst *net.IPNet, r netip.Prefix) bool {
	if dst == nil {
		return false
	}
	ip, ok := netip.AddrFromSlice(dst.IP)
	bits, _ := dst.Mask.Size()
	return ok && bits > 0 && netip.PrefixFrom(ip.Unmap(), bits).Overlaps(r)
}

// DefaultRoute is the destination 0.0.0.0/0 or ::/0, by gw's family.
func DefaultRoute(gw netip.Addr) *net.IPNet { return IPNet(netip.PrefixFrom(unspecified(gw), 0)) }

func unspecified(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Start sets the host end up: from now on the pod's packets pass.
func Start(host netlink.Link) error {
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("set %s up: %w", host.Attrs().Name, err)
	}
	fault.Point("up")
	return nil
}

// Host is the kernel as the address store in the directory Store sees it.
type Host struct{ Store string }

var _ ipam.Host = Host{}

// Living lists the attachments of all networks.
func (h Host) Living() ([]ipam.Living, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	var living []ipam.Living
	for _, l := range links {
		a, ok := parseAlias(l.Attrs().Alias)
		if !ok {
			continue
		}
		started, err := Started(l)
		if err != nil {
			return nil, err
		}
		for _, ip := range a.ips {
			living = append(living, ipam.Living{IP: ip, Owner: a.owner, Up: started,
				Elsewhere: a.store != "" && a.store != storeTag(h.Store)})
		}
	}
	return living, nil
}

// Evict removes an attachment's veth pair. It succeeds if there is none.
func (Host) Evict(o ipam.Owner) error { return remove(o) }

func remove(o ipam.Owner) error {
	link, err := hostEnd(o)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
		fault.Point("link removed")
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", HostName(o), err)
	}
	return nil
}
