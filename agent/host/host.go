// Package host holds one node's kernel state: bridge, addresses, a routing
// table of our own, rules, sysctls and firewall chains. Set may be called again
// and again: it compares what the kernel holds with what is wanted and changes
// only what differs. Package plan says what is wanted; the packages sysctl, rtnetlink,
// nft and iptables each compare their part of it with the kernel. DESIGN.md has the
// drawings.
//
//	host.go     Host, Set and Cleanup
//	parts.go    all kernel state, in the order in which it is set
//	port.go     the port for forwarded probes
//	paths.go    native and VXLAN paths between two calls of Set
//	check.go    what doctor and status report
//	foreign.go  probes through the host's own firewall, and what drops them
//	undone.go   repairs that another program undoes
//	conntrack.go the kernel's table of connections, when it is full
//	others.go   what other programs configure on our interfaces
//	watch.go    changes that the kernel announces
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/iptables"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/uplink"
	"edgemesh/internal/wording"
)

// Names and numbers that the rest of the agent needs.
const (
	BridgeName = plan.BridgeName
	TUNName    = plan.TUNName
	VXLANName  = plan.VXLANName
	Mark       = plan.Mark // SO_MARK of the agent's own sockets
)

// SlotMark is the SO_MARK of probes of one slot.
func SlotMark(slot int) int { return plan.SlotMark(slot) }

// Capabilities says what this host cannot hold, and why.
type Capabilities = plan.Capabilities

// Config says where a Host remembers what it changed.
type Config struct {
	StateDir string // holds sysctls.json: values as they were before the agent
	Log      *slog.Logger
	Find     iptables.Find             // finds programs, nil for iptables.LookPath
	ToTUN    func(packet []byte) error // hands the kernel a packet as from the tunnel; nil: no such packet is probed with
}

// Host sets and removes the kernel state of one node, in the network namespace
// of the calling thread. Its methods may be called from several goroutines.
type Host struct {
	log   *slog.Logger
	toTUN func([]byte) error
	keepers
	asked   bool // the kernel was asked for br_netfilter
	undone  undone
	others  others
	flushed atomic.Uint64 // as Flushed says

	// mu is held while kernel state is compared and set. Lock order: mu, then Paths', then
	// that of the memory of sysctls.
	mu      sync.Mutex
	can     Capabilities // as of the last call
	refused string       // why the firewall cannot hold the rules of LAN paths; never reset
	applied bool         // a Set succeeded: further changes are repairs
	apart   apart
	wanted  plan.State // by the last pass
	fresh   bool       // the last pass wanted something else than the one before
	probed  rules      // the host's firewall as probed last
}

// apart is what is known of dropping between uplinks.
type apart struct {
	wanted, held bool   // by the last plan; by the last Set that succeeded
	logged       string // which uplinks
}

// New prepares a Host; it changes nothing.
func New(c Config) *Host {
	if c.Find == nil {
		c.Find = iptables.LookPath
	}
	memory := sysctl.NewMemory(c.StateDir)
	return &Host{log: c.Log, toTUN: c.ToTUN, keepers: keepers{
		Paths: &Paths{log: c.Log, memory: memory}, policy: &rtnetlink.Rules{}, memory: memory, fw: iptables.New(c.Log, c.Find), tables: nft.New(c.Log),
	}}
}

// Flushed counts repairs of the host's firewall, for where rules of ours are removed those of others may be, and deleted rules of
// plugins behind ours, which legacy iptables does not announce.
func (h *Host) Flushed() uint64 { return h.flushed.Load() }

// Unhooked are the plugins behind ours with a chain in the host's firewall that nothing jumps to. It waits for no Set.
func (h *Host) Unhooked() []string { return h.fw.Unhooked() }

// Programs makes, in dir, a directory with iptables for each backend that this host uses, that of ours first. It waits for no Set.
func (h *Host) Programs(dir string) ([]string, error) { return h.fw.Programs(dir) }

// ErrNoIPv6 means that all blocks of this node are IPv6, which its host does not have.
var ErrNoIPv6 = plan.ErrNoIPv6

// Holds fails with ErrNoIPv6 (wrapped) if this host can hold no block of w for want of IPv6. It changes nothing.
func Holds(w mesh.Host) error {
	if !onlyIPv6(w) {
		return nil
	}
	w.LAN = mesh.LAN{}
	can, err := New(Config{Log: slog.New(slog.DiscardHandler)}).look(w)
	if err != nil || can.NoIPv6 == "" {
		return nil // Set says what is wrong
	}
	return fmt.Errorf("%w: %s", ErrNoIPv6, can.NoIPv6)
}

// Usable fails with iptables.ErrNoIPTables (wrapped) if this host has no iptables that works. It
// changes nothing.
func Usable() error { return iptables.Usable() }

// Present reports whether an agent has set up this host since its last boot, and none has
// cleaned up.
func Present() (bool, error) { return rtnetlink.Present() }

// Set makes the kernel hold what w says, in an order in which nothing leaks:
// what drops comes before what forwards. What this host cannot hold is left out, and
// returned with the reasons. Set fails with rtnetlink.ErrNoTUN (wrapped), the
// rest being set, while the TUN does not exist; with iptables.ErrNoIPTables,
// rtnetlink.ErrNameTaken or ErrTableTaken, nft.ErrTaken, plan.ErrNoBlock or ErrNoIPv6; or with the
// kernel's error. After an error call it again.
func (h *Host) Set(ctx context.Context, w mesh.Host) (Capabilities, error) {
	_, can, err := h.set(ctx, w)
	return can, err
}

// set is Set; it also returns what it changed.
func (h *Host) set(ctx context.Context, w mesh.Host) ([]string, Capabilities, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done, err := h.apply(ctx, w)
	if err != nil && (!h.applied && h.fw.GiveUpIPv6(err) || h.giveUpLAN(err)) {
		var more []string
		more, err = h.apply(ctx, w)
		done = append(done, more...)
	}
	if err != nil {
		return done, h.can, fmt.Errorf("host: %w", err)
	}
	if !h.applied {
		h.log.Info("kernel state set", "changes", len(done))
		h.applied = true
		if !w.Keep && h.loadBridgeFilter() {
			more, err := h.apply(ctx, w) // the host forwards between its pods
			if done = append(done, more...); err != nil {
				return done, h.can, fmt.Errorf("host: %w", err)
			}
		}
	}
	h.apart.held = h.apart.wanted
	return done, h.can, nil
}

// loadBridgeFilter has the kernel load br_netfilter where it is not there. It reports whether it could not: then pods of this node reach
// each other through the host.
func (h *Host) loadBridgeFilter() (missing bool) {
	h.asked = true
	if sysctl.BridgeFilter() {
		return false
	}
	err := sysctl.LoadBridgeFilter(h.fw.LoadBridgeFilter)
	missing = !sysctl.BridgeFilter()
	h.log.Info("br_netfilter requested, for the pods' bridge alone", "loaded", !missing, "err", err)
	return missing
}

// BridgeFiltered reports whether the kernel's rules see what pods of this node send each other.
func BridgeFiltered() bool { return sysctl.BridgeFilter() || podlink.Routed(plan.BridgeName) }

// apply makes one pass over all parts.
func (h *Host) apply(ctx context.Context, w mesh.Host) ([]string, error) {
	var done []string
	err := h.walk(ctx, w, func(p part, changes []plan.Change) error {
		for _, c := range changes {
			if err := c.Do(); err != nil {
				err = fmt.Errorf("%s: %s: %w", p.name, c.What, err)
				if p.ofLAN && (!h.applied || p.waits || h.apart.wanted && !h.apart.held) { // a second uplink may come later
					err = errLAN{err}
				}
				return err
			}
			done = append(done, c.What)
			if h.applied {
				h.repaired(p.name, c.What)
				if slices.Contains([]string{"guard", "snat", "firewall"}, p.name) {
					h.flushed.Add(1)
				}
			} else {
				h.log.Debug("kernel state set", "part", p.name, "change", c.What)
			}
		}
		return nil
	})
	return done, err
}

// repaired notes what was changed back after the first Set. What is undone again and again is logged undoneTimes: some programs do so
// within milliseconds, forever.
func (h *Host) repaired(part, what string) {
	now, made := time.Now(), &h.undone
	if part == interfaces {
		made = &h.others.made
		if !h.fresh { // else what former ranges had
			h.others.add(now, what)
		}
	}
	switch times := made.add(now, part, what); {
	case times < undoneTimes:
		h.log.Info("kernel state repaired", "part", part, "change", what)
	case times == undoneTimes:
		h.log.Info("kernel state repaired; another program undoes it, and this change is logged again only after a pause", "part", part, "change", what, "times", times, "pause", undoneWithin)
	}
}

// errLAN is a failure that a rule for native and VXLAN paths may have caused.
type errLAN struct{ error }

func (e errLAN) Unwrap() error { return e.error }

// giveUpLAN notes that this host's firewall cannot hold the rules for native and VXLAN
// paths. It reports whether they may be the cause of err.
func (h *Host) giveUpLAN(err error) bool {
	if h.refused != "" || !errors.As(err, new(errLAN)) {
		return false
	}
	h.refused = "the firewall refuses the rules for LAN paths: " + err.Error()
	return true
}

// walk calls visit with the differences of each part in turn. Without the TUN, and after a part that waits, it
// continues, and returns the error at the end.
func (h *Host) walk(ctx context.Context, w mesh.Host, visit func(part, []plan.Change) error) error {
	s, err := h.plan(w)
	if err != nil {
		return err
	}
	if h.fresh = !reflect.DeepEqual(s, h.wanted); h.fresh { // repairs are the agent's own doing for a while
		h.wanted = s
		h.undone.forget()
	}
	var missing, failed error
	for _, p := range h.parts(s, h.applied) {
		if err := ctx.Err(); err != nil {
			return err
		}
		changes, err := p.diff()
		noTUN := errors.Is(err, rtnetlink.ErrNoTUN)
		if err != nil {
			err = fmt.Errorf("%s: %w", p.name, err)
		}
		if noTUN {
			missing = err
		}
		if err == nil || noTUN {
			err = visit(p, changes)
		}
		switch {
		case err != nil && p.waits:
			failed = err
		case err != nil:
			return err
		}
	}
	return cmp.Or(failed, missing)
}

// plan finds out what this host can hold of w, logs what changed, and returns the state
// wanted.
func (h *Host) plan(w mesh.Host) (plan.State, error) {
	can, err := h.look(w)
	if err != nil {
		return plan.State{}, err
	}
	var addrs []netip.Addr
	if w.Keep {
		if addrs, err = rtnetlink.Addrs(); err != nil {
			return plan.State{}, err
		}
	}
	if can.NoIPv6 != "" && can.NoIPv6 != h.can.NoIPv6 && wantsIPv6(w) {
		h.log.Warn("pods of this node get no IPv6", "reason", can.NoIPv6)
	}
	if can.NoNative+can.NoVXLAN != "" && (can.NoNative != h.can.NoNative || can.NoVXLAN != h.can.NoVXLAN) {
		h.log.Warn(unavailable(can) + "; packets take other paths or the tunnel")
	}
	h.can = can
	s, err := plan.New(w, can, addrs)
	if err != nil {
		return s, err
	}
	if !can.Unlogged && s.Paths() {
		pods, err := rtnetlink.PodAddrs()
		if err != nil {
			return s, err
		}
		before := h.probes.Load()
		for i := range s.Each {
			var a netip.Addr
			if before != nil {
				a = before.Each[i].Probe
			}
			s.Each[i].AddProbe(pods, a)
		}
	}
	return s, h.addUplinks(&s, w)
}

// addUplinks says between which links nothing is forwarded: where the host forwarded nothing before us.
func (h *Host) addUplinks(s *plan.State, w mesh.Host) error {
	links, err := rtnetlink.Foreign()
	if err != nil {
		return err
	}
	before, err := h.memory.Before(links)
	if err != nil {
		return err
	}
	s.NoTables = h.refused != "" || nft.Missing() != ""
	s.Routed = !w.Keep && !s.NoTables && !sysctl.BridgeFilter() && (h.asked || podlink.Routed(plan.BridgeName))
	names, err := rtnetlink.NoTranslators(links, uplink.Between(links, lone(links, before.Links)))
	if err != nil {
		return err
	}
	for i := range s.Each {
		f := &s.Each[i]
		if f.Wanted && !f.Keep && !w.Forward.All && !f.Access.Closed { // else nobody reaches these ports, from wherever
			f.Guests = names
		}
		if f.Wanted && !before.On[i] && !w.Forward.All && len(names) > 1 {
			f.Uplinks = plan.Uplinks{Names: names, From: sysctl.LinkNames(links, before.From[i])}
		}
	}
	if h.apart.wanted = s.Between(); !h.apart.wanted {
		return nil
	}
	names, err = rtnetlink.Addressed(links, names)
	if list := wording.List(names); err == nil && len(names) > 1 && list != h.apart.logged {
		h.apart.logged = list
		h.log.Info("what goes from one uplink to another is dropped, for this host did not forward before the agent; forward: all in the agent's configuration lets it pass", "uplinks", list)
	}
	return err
}

// look returns what this host can hold of w.
func (h *Host) look(w mesh.Host) (can Capabilities, err error) {
	can.Uncounted, can.Realms = h.tables.Uncounted(), rtnetlink.Realms()
	can.Unlogged = h.tables.Unlogged() || !tellsInput()
	if can.NoIPv6, can.AbsentIPv6, err = sysctl.IPv6(); err != nil {
		return can, err
	}
	noIP6Tables, err := h.fw.Open()
	if err != nil {
		return can, err
	}
	if can.NoIPv6 == "" {
		can.NoIPv6 = noIP6Tables
	}
	if !w.LAN.Native && !w.LAN.VXLAN {
		return can, nil
	}
	why := h.refused
	if why == "" {
		why = nft.Missing()
	}
	can.NoNative, can.NoVXLAN = why, why
	if why == "" && w.LAN.VXLAN {
		can.NoVXLAN, err = rtnetlink.MissingVXLAN(w.LAN)
	}
	return can, err
}

// onlyIPv6 reports whether another plugin does not have the pods, and none of their blocks is IPv4.
func onlyIPv6(w mesh.Host) bool {
	return !w.Keep && wantsIPv6(w) && len(mesh.OfVersion(w.Blocks, false)) == 0
}

func wantsIPv6(w mesh.Host) bool {
	return slices.ContainsFunc(w.Blocks, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// Stand puts the guard back if another program has deleted it, with its own tables for instance (nft flush ruleset). Until then packets
// for pods may leave in clear, so it does not wait for a Set or a probe, which may wait for iptables.
func (h *Host) Stand() {
	switch made, err := h.stand(h.tables.Stand); {
	case err != nil:
		h.log.Debug("guard not back yet", "err", err)
	case made:
		h.repaired("guard", nft.MakeGuard)
		h.flushed.Add(1)
	}
}

// Cleanup removes everything Set made, the TUN included, and gives sysctls
// their remembered values back. It continues after errors and returns them
// joined. Pods lose their network.
func (h *Host) Cleanup(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied = false
	h.policy.Forget()
	h.tables.Forget()
	var errs []error
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"sysctls", h.memory.Restore}, // forwarding first: without it nothing passes while the rules are removed
		{"bridge", rtnetlink.DeleteBridge},
		{"vxlan", rtnetlink.DeleteVXLAN},
		{"tun", rtnetlink.DeleteTUN},
		{"IPv4 rules and routes", func() error { return rtnetlink.Cleanup(netlink.FAMILY_V4) }},
		{"IPv6 rules and routes", func() error { return rtnetlink.Cleanup(netlink.FAMILY_V6) }},
		{"firewall", h.fw.Remove},
		{"nftables", nft.Cleanup},
	} {
		err := ctx.Err()
		if err == nil {
			err = step.do()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("host: clean up: %s: %w", step.name, err))
		}
	}
	return errors.Join(errs...)
}
