package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/probe"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
)

// Paths sets native and VXLAN paths. It has a lock of its own: a dead path must be removed
// immediately, even while a Set waits for iptables.
type Paths struct {
	log    *slog.Logger
	memory *sysctl.Memory

	mu     sync.Mutex     // taken after Host's and before the memory's
	state  plan.State     // of the last Set; paths need its gateways
	set    bool           // state is valid
	wanted mesh.Paths     // by SetPaths
	known  *kernelPaths   // as last set; nil: unknown
	links  map[string]int // interfaces by name, as of then

	// Of one goroutine, which no reading of kernel state holds up.
	port   *port     // nil: there is none
	tried  time.Time // when one was opened last
	probes atomic.Pointer[plan.State]
}

// kernelPaths is the kernel state of paths, found or wanted.
type kernelPaths struct {
	senders nft.Senders
	routes  rtnetlink.Paths
}

// SetPaths makes the kernel hold exactly the given native and VXLAN paths, within
// milliseconds, and remembers them for each later Set. Before the first Set it only
// remembers them. What cannot be set is left out and named in the error. It compares with
// what it set last; Set repairs what other programs changed.
func (p *Paths) SetPaths(ctx context.Context, w mesh.Paths) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = w
	if !p.set {
		return nil
	}
	changes, err := p.diff(false)
	errs := []error{err}
	for _, c := range changes {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		p.log.Debug("path set", "change", c.What)
		if err := c.Do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.What, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.known = nil
		return fmt.Errorf("host: paths: %w", err)
	}
	return nil
}

// stand has another part put back, and sets the paths that need it if it was gone.
func (p *Paths) stand(part func() (made bool, err error)) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made, err := part()
	if !made || err != nil || !p.set {
		return made, err
	}
	changes, err := p.diff(true)
	errs := []error{err}
	for _, c := range changes {
		errs = append(errs, c.Do())
	}
	if err = errors.Join(errs...); err != nil {
		p.known = nil
	}
	return true, err
}

// diffAll compares all paths in the kernel with those wanted last. From now on SetPaths
// uses s.
func (p *Paths) diffAll(s plan.State) ([]plan.Change, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.set = s, true
	p.probes.Store(&s)
	changes, err := p.diff(true)
	for i, c := range changes {
		changes[i].Do = func() error {
			p.mu.Lock()
			defer p.mu.Unlock()
			err := c.Do()
			if err != nil {
				p.known = nil
			}
			return err
		}
	}
	return changes, err
}

// diff compares with the kernel if look is true or nothing is known, else with what was set
// before. It assumes that its changes are made. Changes that let packets in come
// before those that send. The caller holds mu.
func (p *Paths) diff(look bool) ([]plan.Change, error) {
	links, err := rtnetlink.LinkIndexes()
	if err != nil {
		return nil, err
	}
	onLink, err := rtnetlink.OnLink()
	if err != nil {
		return nil, err
	}
	have := p.known
	if look || have == nil {
		p.known = nil
		if have, err = readPaths(p.state, links); err != nil {
			return nil, err
		}
	}
	routes := rtnetlink.WantPaths(p.state, p.wanted, links)
	want := &kernelPaths{nft.WantSenders(p.state, p.wanted, links, routes.Hops(links), onLink), routes}
	p.known, p.links = want, links
	out, err := sysctl.DiffUplinks(p.state, p.wanted, p.memory, look)
	before, after := want.senders.Diff(have.senders)
	return slices.Concat(out, before, want.routes.Diff(have.routes, links), after), err
}

func readPaths(s plan.State, links map[string]int) (*kernelPaths, error) {
	senders, err := nft.ReadSenders(s)
	if err != nil {
		return nil, err
	}
	routes, err := rtnetlink.ReadPaths(s, links)
	if err != nil {
		return nil, err
	}
	return &kernelPaths{senders, routes}, nil
}

// ways are how packets go between pods of this node and far ones: one for each interface by which they leave now, and those of about, as
// Check has it.
func (p *Paths) ways(s plan.State, about []netip.Addr) (out []probe.Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(own, far netip.Addr, asked bool) {
		w := probe.Way{Own: own, Far: far, Link: plan.TUNName}
		for _, r := range p.wanted.Routes {
			if r.Block.Contains(far) {
				w.Link = cmp.Or(r.Link, plan.VXLANName)
			}
		}
		for _, x := range p.wanted.Senders {
			if x.Block.Contains(far) && x.Link == w.Link {
				w.MAC = x.MAC
			}
		}
		if asked || !slices.ContainsFunc(out, func(o probe.Way) bool { return o.Link == w.Link && o.Own == own }) {
			out = append(out, w)
		}
	}
	about = append(about, netip.Addr{}, netip.Addr{})
	for _, f := range s.Held() {
		own, far, ok := probe.Addresses(f)
		if !ok {
			continue
		}
		owns := []netip.Addr{own}
		switch a := cmp.Or(about[0], about[1]); {
		case !a.IsValid() || a.Is6() != f.V6:
		case about[1].IsValid():
			add(cmp.Or(about[0], own), about[1], true)
		default:
			owns = []netip.Addr{a, own}
		}
		for _, own := range owns {
			add(own, far, false)
			for _, r := range p.wanted.Routes {
				if r.Block.Addr().Is6() == f.V6 {
					add(own, mesh.LastAddr(r.Block).Prev(), false)
				}
			}
		}
	}
	return out
}

// setBack lists the interfaces by which pods reach others, and whose forwarding another program has switched off again.
func (p *Paths) setBack() []string {
	links, _ := rtnetlink.Exits()
	p.mu.Lock()
	for _, a := range p.wanted.Probes {
		if a.Kind == mesh.Native && !slices.Contains(links, a.Link) {
			links = append(links, a.Link)
		}
	}
	p.mu.Unlock()
	return sysctl.SetBack(links, p.memory)
}

// present describes the paths that are set.
func (p *Paths) present() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || p.known.routes.Count()+len(p.known.senders) == 0 {
		return "no LAN paths in use"
	}
	return fmt.Sprintf("%d routes and neighbours, %d set elements of LAN paths present", p.known.routes.Count(), len(p.known.senders))
}

// Traffic counts the packets and bytes that came in from peers on the LAN, by where they came in;
// elements that were set again count from zero. The error wraps nft.ErrNotCounted where the
// kernel does not count them.
func (p *Paths) Traffic() (map[mesh.Inlet]mesh.Count, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := nft.Traffic(p.state, p.links)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return out, nil
}

// Uplinks lists the private addresses, and those in the IPv6 internet, of links that lead to other hosts, in the
// order of their numbers. Addresses inside the cluster's ranges are not uplinks.
func (p *Paths) Uplinks() ([]mesh.Uplink, error) {
	p.mu.Lock()
	ranges := p.state.Ranges()
	p.mu.Unlock()
	out, err := rtnetlink.Uplinks(ranges)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return out, nil
}

// Neighbour is the MAC that the kernel has for an address on a link, none if it looked without success, and when it was confirmed; the error
// is fs.ErrNotExist if it has not looked.
func (p *Paths) Neighbour(link string, a netip.Addr) (mac [6]byte, confirmed time.Time, err error) {
	if mac, confirmed, err = rtnetlink.Neighbour(link, a); err != nil {
		err = fmt.Errorf("host: %w", err)
	}
	return mac, confirmed, err
}

// suspectOver notes that routes over an interface may be gone. The interface may look
// unchanged by now, so nothing else would show it.
func (p *Paths) suspectOver(index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != nil && p.known.routes.Over(index) {
		p.known = nil
	}
}

// PathsSuspect reports whether the kernel may have dropped paths since SetPaths: the next
// call compares.
func (p *Paths) PathsSuspect() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set && p.known == nil
}
