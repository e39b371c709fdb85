package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/mesh"
)

// lanState is what a Host knows of native and VXLAN paths. It has a lock of its
// own: a path that died must go at once, also while a Set waits for iptables.
type lanState struct {
	mu     sync.Mutex
	fs     families       // as last set; paths need its gateways
	set    bool           // fs is valid
	wanted mesh.Paths     // by SetPaths
	known  *kernelPaths   // as set last; nil: not known
	links  map[string]int // interfaces by name, as of then

	uncounted bool // the kernel cannot count packets per element of a set

	noNative, noVXLAN string // why there are none, "" when they are possible
	offered           bool   // rules of paths are part of this Set
	refused           string // iptables cannot hold the rules; for good
	told              string // the last reasons logged
}

// lan is one family's part in native and VXLAN paths.
type lan struct {
	on        bool   // the family's pods may use native paths or VXLAN
	probePort uint16 //
	vxlanPort uint16 // 0: no VXLAN, or its outer packets are of the other family
	native    bool
	vxlan     bool
}

// SetPaths makes the kernel hold exactly the given native and VXLAN paths, within
// milliseconds, and keeps them for each Set to come. Before the first Set it only
// keeps them. What cannot be set is left out, and told in the error. It compares with
// what it knows to have set; what others change, Set repairs.
func (h *Host) SetPaths(ctx context.Context, w mesh.Paths) error {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	h.lan.wanted = w
	if !h.lan.set {
		return nil
	}
	changes, err := h.lan.diff(&h.memory, false)
	errs := []error{err}
	for _, c := range changes {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		h.log.Debug("path set", "change", c.what)
		if err := c.do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.what, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		h.lan.known = nil
		return fmt.Errorf("host: paths: %w", err)
	}
	return nil
}

// LAN tells why this host can hold no native paths and no VXLAN paths, each ""
// when it can. It is known after the first Set.
func (h *Host) LAN() (noNative, noVXLAN string) {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	return h.lan.noNative, h.lan.noVXLAN
}

// planLAN decides which of the wanted kinds of paths this host can hold, without
// changing anything.
func (h *Host) planLAN(fs *families, w mesh.LAN) error {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	s := &h.lan
	s.noNative, s.noVXLAN, s.offered = "", "", false
	fs.uncounted = s.uncounted
	if !w.Native && !w.VXLAN {
		return nil
	}
	why := s.refused
	if why == "" {
		why = missingNFT()
	}
	if why != "" {
		s.noNative, s.noVXLAN = why, why
	} else {
		if w.VXLAN {
			var err error
			if s.noVXLAN, err = missingVXLAN(w); err != nil {
				return err
			}
		}
	}
	if !fs.keep && why == "" {
		fs.lan, s.offered = w, true
		fs.lan.Native = w.Native && s.noNative == ""
		fs.lan.VXLAN = w.VXLAN && s.noVXLAN == ""
		for i := range fs.each {
			f := &fs.each[i]
			f.lan = lan{
				on: f.wanted && f.gateway.IsValid() && (fs.lan.Native || fs.lan.VXLAN), probePort: w.ProbePort,
				native: fs.lan.Native, vxlan: fs.lan.VXLAN,
			}
			if fs.lan.VXLAN && f.v6 == w.IPv6Underlay {
				f.lan.vxlanPort = w.VXLANPort
			}
		}
	}
	if told := s.noNative + s.noVXLAN; told != s.told {
		s.told = told
		if told != "" {
			h.log.Warn("paths on the LAN are not all possible", "native", orOK(s.noNative), "vxlan", orOK(s.noVXLAN))
		}
	}
	return nil
}

func orOK(why string) string {
	if why == "" {
		return "ok"
	}
	return why
}

// giveUpLAN notes that this host's firewall cannot hold the rules of native and
// VXLAN paths; false means that it was not their fault.
func (h *Host) giveUpLAN(err error) bool {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	if !h.lan.offered || !errors.As(err, new(errFirewall)) {
		return false
	}
	h.lan.refused = "the firewall cannot hold the rules of paths: " + err.Error()
	return true
}

// errFirewall is a failure of the parts firewall and guard.
type errFirewall struct{ error }

func (e errFirewall) Unwrap() error { return e.error }

// diffLAN compares all paths in the kernel with those wanted last. SetPaths works
// with fs from now on.
func (h *Host) diffLAN(fs families) ([]change, error) {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	h.lan.fs, h.lan.set = fs, true
	changes, err := h.lan.diff(&h.memory, true)
	for i, c := range changes {
		changes[i].do = func() error {
			h.lan.mu.Lock()
			defer h.lan.mu.Unlock()
			err := c.do()
			if err != nil {
				h.lan.known = nil
			}
			return err
		}
	}
	return changes, err
}

// kernelPaths is what the kernel holds of paths, or shall hold.
type kernelPaths struct {
	senders    map[sender]bool
	neighbours map[neighbour]bool    // of the VXLAN device
	routes     [2]map[pathRoute]bool // of IPv4 and IPv6
}

// diff compares with the kernel where look is true or nothing is known, else with
// what was set before. The changes are assumed to be made. What lets packets in
// comes before what sends. The caller holds mu.
func (s *lanState) diff(m *memory, look bool) ([]change, error) {
	links, err := linkIndexes()
	if err != nil {
		return nil, err
	}
	if look || s.known == nil {
		if s.known, err = readPaths(s.fs, links); err != nil {
			s.known = nil
			return nil, err
		}
	}
	want := wantPaths(s.fs, s.wanted, links)
	have := s.known
	if _, ok := links[VXLANName]; !ok {
		have.neighbours = nil // went with the device
	}
	s.known, s.links = want, links
	out, err := diffUplinks(s.fs, s.wanted, m, look)
	out = append(out, diffSenders(have.senders, want.senders)...)
	ways := diffNeighbours(have.neighbours, want.neighbours, links[VXLANName])
	for i, f := range s.fs.each {
		ways = append(ways, diffPathRoutes(f, have.routes[i], want.routes[i])...)
	}
	out = append(out, batched("change paths", ways)...)
	return out, err
}

func readPaths(fs families, links map[string]int) (*kernelPaths, error) {
	out := &kernelPaths{}
	if g := fs.guard(); g.wanted() {
		var err error
		if out.senders, err = listSenders(g); err != nil {
			return nil, err
		}
	}
	if index, ok := links[VXLANName]; ok && fs.lan.VXLAN {
		var err error
		if out.neighbours, err = listNeighbours(index); err != nil {
			return nil, err
		}
	}
	for i, f := range fs.held() {
		var err error
		if out.routes[i], err = listPathRoutes(f.id()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func wantPaths(fs families, w mesh.Paths, links map[string]int) *kernelPaths {
	out := &kernelPaths{senders: wantSenders(fs, w, links)}
	if _, ok := links[VXLANName]; ok {
		out.neighbours = wantNeighbours(fs, w)
	}
	for i, f := range fs.held() {
		out.routes[i] = f.pathRoutes(w, links)
	}
	return out
}

// linkIndexes maps the names of all interfaces that are up to their numbers. The kernel
// drops the routes of one that is set down, tells nobody, and takes no new ones.
func linkIndexes() (map[string]int, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	out := make(map[string]int, len(links))
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 {
			out[l.Attrs().Name] = l.Attrs().Index
		}
	}
	return out, nil
}

// linkOf is the interface of a hop.
func linkOf(name string) string {
	if name == "" {
		return VXLANName
	}
	return name
}

// diffUplinks makes reverse-path filtering loose on uplinks of native paths that
// are strict: a peer's packets may come in natively while ours still go through
// the tunnel. The cluster's own sources are checked by the guard. Where look is true,
// uplinks that no way leads over any more get their own value back.
func diffUplinks(fs families, w mesh.Paths, m *memory, look bool) ([]change, error) {
	all, err := readSysctl("net/ipv4/conf/all/rp_filter")
	if err != nil {
		return nil, fmt.Errorf("read sysctl: %w", err)
	}
	const loose = "2"
	var want []sysctl
	used := map[string]bool{}
	for _, a := range w.Probes {
		key := rpFilter(a.Link)
		if !fs.each[0].lan.on || a.Link == "" || used[key] {
			continue
		}
		used[key] = true
		one, err := readSysctl(key)
		if err != nil {
			continue // the interface is gone; so will be the path
		}
		if max(all, one) == "1" {
			want = append(want, sysctl{key, loose, true})
		}
	}
	out, err := diffRemembered(want, m)
	if err != nil || !look {
		return out, err
	}
	r, err := m.load()
	if err != nil {
		return nil, err
	}
	for key, value := range r.Values {
		if _, rest, ok := cutLink(key); ok && rest[1] == "rp_filter" && !used[r.now(key)] {
			out = append(out, change{fmt.Sprintf("give %s its value %s back", r.now(key), value), func() error { return m.giveBack(key, loose) }})
		}
	}
	return out, nil
}

func rpFilter(link string) string { return "net/ipv4/conf/" + link + "/rp_filter" }

// inFamily returns the family of a pod address.
func (fs families) inFamily(a netip.Addr) family {
	if a.Is4() {
		return fs.each[0]
	}
	return fs.each[1]
}
