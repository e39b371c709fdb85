package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/agent/mesh"
)

// Paths sets native and VXLAN paths. It has a lock of its own: a path that died must go at
// once, also while a Set waits for iptables.
type Paths struct {
	log    *slog.Logger
	memory *sysctl.Memory

	mu     sync.Mutex     // taken after Host's and before the memory's
	state  plan.State     // as last set; paths need its gateways
	set    bool           // state is valid
	wanted mesh.Paths     // by SetPaths
	known  *kernelPaths   // as set last; nil: not known
	links  map[string]int // interfaces by name, as of then
}

// kernelPaths is what the kernel holds of paths, or shall hold.
type kernelPaths struct {
	senders nft.Senders
	routes  rtnetlink.Paths
}

// SetPaths makes the kernel hold exactly the given native and VXLAN paths, within
// milliseconds, and keeps them for each Set to come. Before the first Set it only
// keeps them. What cannot be set is left out, and named in the error. It compares with
// what it knows to have set; what others change, Set repairs.
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

// diffAll compares all paths in the kernel with those wanted last. SetPaths works
// with s from now on.
func (p *Paths) diffAll(s plan.State) ([]plan.Change, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.set = s, true
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

// diff compares with the kernel where look is true or nothing is known, else with
// what was set before. The changes are assumed to be made. What lets packets in
// comes before what sends. The caller holds mu.
func (p *Paths) diff(look bool) ([]plan.Change, error) {
	links, err := rtnetlink.LinkIndexes()
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
	want := &kernelPaths{nft.WantSenders(p.state, p.wanted, links), rtnetlink.WantPaths(p.state, p.wanted, links)}
	p.known, p.links = want, links
	out, err := sysctl.DiffUplinks(p.state, p.wanted, p.memory, look)
	out = append(out, want.senders.Diff(have.senders)...)
	return append(out, want.routes.Diff(have.routes, links)...), err
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

// present says what there is of paths.
func (p *Paths) present() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		return "no LAN paths yet"
	}
	return fmt.Sprintf("%d routes and neighbours, %d set elements of LAN paths present", p.known.routes.Count(), len(p.known.senders))
}

// Traffic counts the packets that came in from peers on the LAN, by where they came in;
// elements that were set again count from zero. The error wraps nft.ErrNotCounted where the
// kernel does not count them.
func (p *Paths) Traffic() (map[mesh.Inlet]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := nft.Traffic(p.state, p.links)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return out, nil
}

// Uplinks lists the private addresses of links that lead to other hosts, in the
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

// suspectOver notes that routes over an interface may be gone. It may be as before
// already: nothing else would tell then.
func (p *Paths) suspectOver(index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != nil && p.known.routes.Over(index) {
		p.known = nil
	}
}

// PathsInDoubt reports whether the kernel may hold less than SetPaths has set: the
// next call compares.
func (p *Paths) PathsInDoubt() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set && p.known == nil
}
