package ipam

import (
	"cmp"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
)

// Request is for one address of each family that Blocks has.
type Request struct {
	Owner
	Blocks   []netip.Prefix
	Excluded []conf.AddrRange
	Wanted   []netip.Addr // at most one per family; the request fails without it
}

// startGrace is how long an attachment may take from its record to its
// interface before the record counts as left behind.
const startGrace = 2 * time.Minute

// pool is what is known about every address at one moment. Its methods decide and change
// nothing.
type pool struct {
	records map[netip.Addr]Record
	living  map[netip.Addr][]Living // attachments that exist in the kernel
	boot    string                  // ID of the running boot
	clock   time.Time
	now     time.Time // clock, but later than every time in records
}

// alive reports whether r's container may still exist. Records of another plugin's
// containers count until the next boot.
func (p *pool) alive(r Record) bool {
	if len(p.living[r.IP]) > 0 || r.stuck {
		return true
	}
	return r.InUse() && r.Network == "" && (r.Boot == "" || r.Boot == p.boot)
}

// abandoned reports whether r is in use on paper only. An attachment of this boot without
// an interface may still be in progress; if a clock step cuts the wait short, its ADD
// notices the loss and fails.
func (p *pool) abandoned(r Record) bool {
	if !r.InUse() || p.alive(r) {
		return false
	}
	age := p.clock.Sub(r.Allocated)
	return r.Boot != p.boot || age < 0 || age >= startGrace
}

// choose picks an address for req from blocks, which are of one family, in this order:
// the requested one; the one that the attachment has or that is kept for the pod's name;
// one that was never used; the one of the pod deleted longest ago; one whose container
// has vanished. The error wraps ErrWanted or ErrFull.
func (p *pool) choose(req Request, blocks []netip.Prefix) (netip.Addr, error) {
	for _, w := range req.Wanted {
		if w.Is4() == blocks[0].Addr().Is4() {
			return w, p.canHave(req, blocks, w)
		}
	}
	if a, ok := p.own(req, blocks); ok {
		return a, nil
	}
	if a, ok := p.unused(req, blocks); ok {
		return a, nil
	}
	if a, ok := p.oldest(req, blocks, func(r Record) bool { return !r.InUse() && !p.alive(r) }); ok {
		return a, nil
	}
	if a, ok := p.oldest(req, blocks, p.abandoned); ok {
		return a, nil
	}
	used, kept := p.count(blocks)
	return netip.Addr{}, fmt.Errorf("%w in %v: %d in use, %d kept for deleted pods, %d usable in all",
		ErrFull, blocks, used, kept, usable(blocks, req.Excluded))
}

// canHave says why req cannot have address a, which it requested.
func (p *pool) canHave(req Request, blocks []netip.Prefix, a netip.Addr) error {
	if !allowed(req, blocks, a) {
		return fmt.Errorf("%w: %s is not among the pod addresses of %v", ErrWanted, a, blocks)
	}
	r, ok := p.records[a]
	if l, lives := p.other(a, req.Owner); lives && (!ok || !r.InUse() || l.Elsewhere) {
		return fmt.Errorf("%w: %s is on an interface of container %s of %s", ErrWanted, a, l.ContainerID, l.Network)
	}
	if !ok {
		return nil
	}
	if r.InUse() && !r.sameAttachment(req.Owner) && !p.replaces(req, r) && !p.abandoned(r) || r.torn && p.alive(r) {
		return fmt.Errorf("%w: %s is in use by %s/%s, container %s", ErrWanted, a, r.Namespace, r.Pod, r.ContainerID)
	}
	return nil
}

// other finds an attachment other than o that has a; another store's takes precedence.
func (p *pool) other(a netip.Addr, o Owner) (found Living, ok bool) {
	for _, l := range p.living[a] {
		if !l.sameAttachment(o) && (!ok || l.Elsewhere) {
			found, ok = l, true
		}
	}
	return found, ok
}

// replaces reports whether req is r's pod in a new container, which makes the old one
// obsolete: it is the same pod object, or the old container is gone.
func (p *pool) replaces(req Request, r Record) bool {
	if !r.For(req.Owner) {
		return false
	}
	return !r.InUse() && !p.alive(r) ||
		r.InUse() && (r.UID == "" || req.UID == "" || r.UID == req.UID || !p.alive(r))
}

// own finds the address that req has, or had last.
func (p *pool) own(req Request, blocks []netip.Prefix) (netip.Addr, bool) {
	var best Record
	for _, r := range p.records {
		if !allowed(req, blocks, r.IP) || p.elsewhere(r.IP) {
			continue
		}
		if r.InUse() && r.sameAttachment(req.Owner) {
			return r.IP, true
		}
		if p.replaces(req, r) && (!best.IP.IsValid() || givenBefore(best, r) < 0) {
			best = r
		}
	}
	return best.IP, best.IP.IsValid()
}

// elsewhere reports whether a pod of another store has a.
func (p *pool) elsewhere(a netip.Addr) bool {
	return slices.ContainsFunc(p.living[a], func(l Living) bool { return l.Elsewhere })
}

// unused finds an address without a record, the next one after the latest allocation, so
// that addresses are reused as late as possible.
func (p *pool) unused(req Request, blocks []netip.Prefix) (netip.Addr, bool) {
	for _, b := range blocks {
		var last Record
		for _, r := range p.records {
			if b.Contains(r.IP) && !r.torn && (!last.IP.IsValid() || r.Allocated.After(last.Allocated)) {
				last = r
			}
		}
		first, end := span(b)
		start := first
		if last.IP.IsValid() && !last.IP.Less(first) && last.IP.Less(end) {
			start = last.IP.Next()
		}
		if a, ok := p.scan(req, start, end); ok {
			return a, true
		}
		if a, ok := p.scan(req, first, start); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// scan finds the first address from first to last without record or holder.
func (p *pool) scan(req Request, first, last netip.Addr) (netip.Addr, bool) {
next:
	for a := first; a.IsValid() && !last.Less(a); a = a.Next() {
		for _, x := range req.Excluded {
			if x.Contains(a) {
				a = x.Last
				continue next
			}
		}
		_, known := p.records[a]
		if !known && len(p.living[a]) == 0 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// oldest finds the record that was touched longest ago among those that ok accepts.
func (p *pool) oldest(req Request, blocks []netip.Prefix, ok func(Record) bool) (netip.Addr, bool) {
	var best Record
	for _, r := range p.records {
		if ok(r) && allowed(req, blocks, r.IP) && (!best.IP.IsValid() || older(r, best) < 0) {
			best = r
		}
	}
	return best.IP, best.IP.IsValid()
}

// older orders records by the time they were touched, then by address.
func older(a, b Record) int {
	return cmp.Or(a.touched().Compare(b.touched()), a.IP.Compare(b.IP))
}

// givenBefore orders the records of one pod by the time it got them, because it may have
// released an earlier address after it got the next one. For torn records only the time
// they were touched is known.
func givenBefore(a, b Record) int {
	given := func(r Record) time.Time {
		if r.Allocated.IsZero() {
			return r.touched()
		}
		return r.Allocated
	}
	return cmp.Or(given(a).Compare(given(b)), older(a, b))
}

// count returns how many addresses of blocks are in use and how many are kept.
func (p *pool) count(blocks []netip.Prefix) (used, kept int) {
	for _, r := range p.records {
		if !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(r.IP) }) {
			continue
		}
		if r.InUse() || p.alive(r) {
			used++
		} else {
			kept++
		}
	}
	return used, kept
}

// allowed reports whether a pod may have a at all.
func allowed(req Request, blocks []netip.Prefix, a netip.Addr) bool {
	if slices.ContainsFunc(req.Excluded, func(x conf.AddrRange) bool { return x.Contains(a) }) {
		return false
	}
	return slices.ContainsFunc(blocks, func(b netip.Prefix) bool {
		first, last := span(b)
		return b.Contains(a) && !a.Less(first) && !last.Less(a)
	})
}

// span is the first and last address of b that a pod may have, which excludes the network
// address, the gateway and the IPv4 broadcast address.
func span(b netip.Prefix) (first, last netip.Addr) {
	first, last = mesh.Gateway(b).Next(), mesh.LastAddr(b)
	if last.Is4() {
		last = last.Prev()
	}
	return first, last
}

// many stands for any larger number of addresses.
const many uint64 = 1 << 62

// usable counts the addresses of blocks without the excluded ones, up to many. It counts
// overlapping exclusions twice, so the result may be too low.
func usable(blocks []netip.Prefix, excluded []conf.AddrRange) uint64 {
	var n uint64
	for _, b := range blocks {
		first, last := span(b)
		free := distance(first, last)
		for _, x := range excluded {
			lo, hi := x.First, x.Last
			if lo.Is4() != first.Is4() || hi.Less(first) || last.Less(lo) {
				continue
			}
			if lo.Less(first) {
				lo = first
			}
			if last.Less(hi) {
				hi = last
			}
			free -= min(free, distance(lo, hi))
		}
		n = min(n+free, many)
	}
	return n
}

// distance counts the addresses from first to last, inclusive, up to many.
func distance(first, last netip.Addr) uint64 {
	a, b := new(big.Int).SetBytes(first.AsSlice()), new(big.Int).SetBytes(last.AsSlice())
	n := b.Sub(b, a).Add(b, big.NewInt(1))
	if !n.IsUint64() || n.Uint64() > many {
		return many
	}
	return n.Uint64()
}
