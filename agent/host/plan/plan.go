// Package plan derives, purely, the kernel state of one node from mesh.Host and
// from what this host can hold. The packages beside it (sysctl, rtnetlink, nft,
// iptables) compare it with the kernel; package host says in which order.
//
//	names.go  names and numbers that are ours
//	plan.go   State, by IP version; Change: a difference, and what removes it
//	access.go who reaches the ports of this node, and what pods reach through it
package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
)

// ErrNoBlock means that a plan has no pod block for this node.
var ErrNoBlock = errors.New("this node has no pod block; add one to its podCIDRs in the membership")

// ErrNoIPv6 means that all blocks of this node are IPv6, which its host does not have.
var ErrNoIPv6 = errors.New("this node has IPv6 blocks only, and its host no usable IPv6")

// Capabilities says what a host cannot hold of a plan, each with the reason, "" for
// what it can hold.
type Capabilities struct {
	NoIPv6            string
	NoNative, NoVXLAN string
	AbsentIPv6        bool // the kernel does not know IPv6 at all
	Uncounted         bool // it does not count packets per element of a set
	Realms            bool // its IPv4 routes have realms
	Unlogged          bool // forwarded probes cannot be taken
}

// State is the kernel state wanted of one node.
type State struct {
	Each          [2]Family // IPv4, IPv6
	MTU           int       // bytes
	Keep, Promisc bool      // as in mesh.Host
	LAN           mesh.LAN  // the part of it that this host can hold
	Uncounted     bool      // as in Capabilities
	Realms        bool      // likewise
	NoTables      bool      // there is no nf_tables: iptables drops what goes between uplinks or outside, too
	Routed        bool      // this host, not its bridge, forwards between its pods: no rule would see what the bridge does
}

// Family is what is wanted of one IP version.
type Family struct {
	V6      bool
	Wanted  bool           // false: nothing of ours may be left in this family
	Blocks  []netip.Prefix // own blocks
	Ranges  []netip.Prefix // the cluster's ranges
	Gateway netip.Addr     // of the first own block; invalid when there is none
	Probe   netip.Addr     // of no pod: where forwarded probes are taken and sent from; invalid: there are none
	Former  []netip.Addr   // as in mesh.Host; on one interface alone: the bridge, or the TUN in keep mode
	Moved   []netip.Prefix // in keep mode: as in mesh.Host
	Keep    bool           // another plugin has the pods; Gateway is the node's address among them, if any
	Absent  bool           // the kernel does not know this family at all
	LAN     LAN
	Access  Access
	Forward mesh.Forward // the senders of this family, and no pods
	Uplinks Uplinks
	Guests  []string // links by which hosts outside of the pod network reach no port of this node's under an address of its blocks
	Outside bool     // what would leave over other programs' interfaces for the ranges is dropped
}

// Hop is where packets for a member's block, or one probe, may leave this host: the next hop was proved, or is being probed.
type Hop struct {
	Dst   netip.Prefix
	Link  int // index of the interface
	Via   netip.Addr
	Probe bool
}

// Stray is what was dropped because it would have left this host for the pod ranges over another program's interface.
type Stray struct {
	Link     int // index of the interface
	Mark     uint32
	Src, Dst netip.Addr
}

// Uplinks are what one family's packets may not go between: the host did not forward them before us.
type Uplinks struct {
	Names []string // nil: nothing is dropped
	From  []string // of them, those whose packets the host forwarded all the same
}

// LAN is one family's part in native and VXLAN paths.
type LAN struct {
	On            bool   // the family's pods may use native or VXLAN paths
	ProbePort     uint16 //
	VXLANPort     uint16 // 0: no VXLAN, or its outer packets are of the other family
	Native, VXLAN bool
	Bits          []int // lengths that members' blocks have
	// PodsOnly: what nodes send themselves takes the tunnel, where the sender is proved, and what comes in past it with the
	// address of a node is dropped, except for probes.
	PodsOnly bool
}

// New splits w by IP version and leaves out what the host cannot hold. addrs are the
// addresses of foreign interfaces: in keep mode one of them is the gateway. The error wraps
// ErrNoBlock or ErrNoIPv6.
func New(w mesh.Host, can Capabilities, addrs []netip.Addr) (State, error) {
	if len(w.Blocks) == 0 {
		return State{}, ErrNoBlock
	}
	out := State{MTU: w.MTU, Keep: w.Keep, Promisc: w.Promisc, Uncounted: can.Uncounted, Realms: can.Realms}
	for i := range out.Each {
		f := &out.Each[i]
		f.V6, f.Absent = i == 1, i == 1 && can.AbsentIPv6
		if f.V6 && can.NoIPv6 != "" {
			continue
		}
		f.Blocks, f.Ranges = ofVersion(w.Blocks, f.V6), ofVersion(w.ClusterCIDRs, f.V6)
		f.Wanted = len(f.Blocks)+len(f.Ranges) > 0
		f.Keep, f.Outside = w.Keep && f.Wanted, !w.Keep && f.Wanted && len(f.Ranges) > 0
		f.Access, f.Forward = accessOf(w, *f), forwardOf(w, *f)
		switch {
		case f.Keep:
			f.Gateway, f.Moved = addrInside(f.Blocks, addrs), ofVersion(w.Moved, f.V6)
		case len(f.Blocks) > 0:
			f.Gateway = mesh.Gateway(f.Blocks[0])
		}
		for _, a := range w.Former {
			// What another plugin may have, or give to a pod, is its own.
			foreign := f.Keep && (slices.Contains(addrs, a) || f.Own(a))
			if f.Wanted && a.Is6() == f.V6 && !foreign {
				f.Former = append(f.Former, a)
			}
		}
	}
	if !out.Each[0].Wanted && !out.Each[1].Wanted {
		return State{}, fmt.Errorf("%w: %s", ErrNoIPv6, can.NoIPv6)
	}
	if !w.Keep {
		out.addLAN(w, can)
	}
	return out, nil
}

// addLAN adds the host's part in native and VXLAN paths.
func (s *State) addLAN(h mesh.Host, can Capabilities) {
	w := h.LAN
	s.LAN = w
	s.LAN.Native = w.Native && can.NoNative == ""
	s.LAN.VXLAN = w.VXLAN && can.NoVXLAN == ""
	for i := range s.Each {
		f := &s.Each[i]
		f.LAN = LAN{
			On:        f.Wanted && f.Gateway.IsValid() && s.Paths(),
			ProbePort: w.ProbePort, Native: s.LAN.Native, VXLAN: s.LAN.VXLAN, Bits: w.Bits[i],
		}
		if f.LAN.On && h.Access.HostAccess.Closed() {
			f.LAN.PodsOnly = true
		}
		if s.LAN.VXLAN && f.V6 == w.IPv6Underlay {
			f.LAN.VXLANPort = w.VXLANPort
		}
	}
}

// Between reports whether packets between uplinks are dropped, in package nft unless NoTables.
func (s State) Between() bool {
	return s.Each[0].Uplinks.Names != nil || s.Each[1].Uplinks.Names != nil
}

// Paths reports whether native or VXLAN paths may be used.
func (s State) Paths() bool { return s.LAN.Native || s.LAN.VXLAN }

// Held lists the families that the kernel has.
func (s State) Held() []Family {
	if s.Each[1].Absent {
		return s.Each[:1]
	}
	return s.Each[:]
}

// Of returns the family of a pod address.
func (s State) Of(a netip.Addr) Family {
	if a.Is4() {
		return s.Each[0]
	}
	return s.Each[1]
}

// Ranges are the cluster's, of both families.
func (s State) Ranges() []netip.Prefix { return slices.Concat(s.Each[0].Ranges, s.Each[1].Ranges) }

// AddProbe finds the family's address for forwarded probes: the one before as long as no pod has it, else the highest one of the first
// block that none has.
func (f *Family) AddProbe(pods []netip.Addr, before netip.Addr) {
	if !f.LAN.On {
		return
	}
	free := func(a netip.Addr) bool {
		return f.Blocks[0].Contains(a) && a != f.Gateway && !slices.Contains(pods, a) && !slices.Contains(f.Former, a)
	}
	if f.Probe = before; free(before) {
		return
	}
	f.Probe = netip.Addr{}
	for a := mesh.LastAddr(f.Blocks[0]).Prev(); f.Blocks[0].Contains(a) && a != f.Gateway; a = a.Prev() {
		if free(a) {
			f.Probe = a
			return
		}
	}
}

// ID is the address family.
func (f Family) ID() int {
	if f.V6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Gateways returns the node's addresses in its blocks, with prefix lengths.
func (f Family) Gateways() []netip.Prefix {
	var out []netip.Prefix
	switch {
	case !f.Keep:
		for _, b := range f.Blocks {
			out = append(out, Gateway(b))
		}
	case f.Gateway.IsValid():
		out = append(out, Single(f.Gateway))
	}
	return out
}

// Own reports whether a is inside one of the node's blocks.
func (f Family) Own(a netip.Addr) bool { return mesh.Inside(f.Blocks, Single(a)) }

// InRange reports whether p is inside one of the cluster's ranges.
func (f Family) InRange(p netip.Prefix) bool {
	return mesh.Inside(f.Ranges, p)
}

// ProbeSlots returns how many slots probes of this family have.
func (f Family) ProbeSlots() int {
	if !f.LAN.On {
		return 0
	}
	return mesh.ProbeSlots
}

// BackSlots returns how many marks and tables of reverse paths the family has. IPv4's filter is a sysctl.
func (f Family) BackSlots() int {
	if !f.LAN.On || !f.V6 {
		return 0
	}
	return BackSlots
}

// Gateway is the gateway of a block with the block's prefix length.
func Gateway(block netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(mesh.Gateway(block), block.Bits())
}

// Single is the prefix of one address.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// ofVersion returns the prefixes of one IP version, masked.
func ofVersion(all []netip.Prefix, v6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// addrInside returns the address inside the first block that has one: the block's first, or else the lowest. Flannel has a
// lower one on its VXLAN device.
func addrInside(blocks []netip.Prefix, addrs []netip.Addr) netip.Addr {
	for _, b := range blocks {
		in := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !b.Contains(a) })
		if gateway := mesh.Gateway(b); slices.Contains(in, gateway) {
			return gateway
		}
		if len(in) > 0 {
			return slices.MinFunc(in, netip.Addr.Compare)
		}
	}
	return netip.Addr{}
}

// Change is one difference between the kernel's state and the wanted one, and
// what removes it.
type Change struct {
	What string
	Do   func() error
}

// Apply makes the changes that diff finds, in order, up to the first that fails.
func Apply(diff func() ([]Change, error)) error {
	changes, err := diff()
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := c.Do(); err != nil {
			return fmt.Errorf("%s: %w", c.What, err)
		}
	}
	return nil
}

// Diff lists what have has and want has not, and the reverse.
func Diff[T comparable](have, want map[T]bool) (gone, missing []T) {
	for t := range have {
		if !want[t] {
			gone = append(gone, t)
		}
	}
	for t := range want {
		if !have[t] {
			missing = append(missing, t)
		}
	}
	return gone, missing
}
