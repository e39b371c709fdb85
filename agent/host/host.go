// Package host holds one node's kernel state: bridge, addresses, a routing
// table of our own, rules, sysctls and firewall chains. Set may be called again
// and again: it compares what the kernel holds with what is wanted and changes
// only what differs. DESIGN.md beside this file draws the whole of it.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/mesh"
	"edgemesh/cni/conf"
)

// Fixed names and numbers. Operators and other programs may rely on them.
const (
	BridgeName = conf.DefaultBridge
	TUNName    = "edgemesh0"

	TableID       = 5210     // our routing table
	RulePrefSkip  = 5199     // not fwmark ownMarks/ownMarkMask goto RulePref, where there are LAN paths
	RulePrefMark  = 5200     // fwmark Mark/MarkMask lookup main: the agent's own sockets
	RulePref      = 5210     // lookup TableID
	Mark          = 0xed0000 // SO_MARK of the agent's own sockets
	MarkMask      = 0xff0000 //
	RouteProtocol = 210      // rtm_protocol of our routes and rules
	RouteMetric   = 1024     // of the routes that carry packets
	// BlackholeMetric is far behind every other route: what no route carries is
	// dropped here and never reaches the host's default route.
	BlackholeMetric = 4278198272

	// ChainPrefix begins the name of each firewall chain of ours.
	ChainPrefix = "EDGEMESH-"
)

// Config says where a Host remembers what it changed.
type Config struct {
	StateDir string // holds sysctls.json: values as they were before the agent
	Log      *slog.Logger
}

// Host sets and removes the kernel state of one node, in the network namespace
// of the calling thread. Its methods may be called from several goroutines.
type Host struct {
	log *slog.Logger

	mu      sync.Mutex
	memory  memory
	fw      firewall
	noIPv6  string // why IPv6 is left alone, "" when it is not; logged once
	noSNAT  bool   // the kernel cannot hold snatTable; logged once
	settled bool   // a Set went through: changes from now on are repairs

	lan lanState
}

// New prepares a Host; it changes nothing.
func New(c Config) *Host {
	return &Host{
		log:    c.Log,
		memory: memory{path: filepath.Join(c.StateDir, MemoryFile)},
		fw:     firewall{log: c.Log, look: lookPath, printed: map[string]string{}},
	}
}

// Set makes the kernel hold what w says, in an order in which nothing leaks:
// what drops comes before what forwards. It fails with ErrNoTUN (wrapped), the
// rest being set, while the TUN does not exist; with ErrNoIPTables, ErrNameTaken
// or ErrNoBlock; or with the kernel's error. After an error call it again.
func (h *Host) Set(ctx context.Context, w mesh.Host) error {
	_, err := h.set(ctx, w)
	return err
}

// set is Set; it also tells what it changed.
func (h *Host) set(ctx context.Context, w mesh.Host) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done, err := h.apply(ctx, w)
	if err != nil && !h.settled && (h.fw.giveUpIPv6(err) || h.giveUpLAN(err)) {
		var more []string
		more, err = h.apply(ctx, w)
		done = append(done, more...)
	}
	if err != nil {
		return done, fmt.Errorf("host: %w", err)
	}
	if !h.settled {
		h.log.Info("host state is set", "changes", len(done))
		h.settled = true
	}
	return done, nil
}

// apply makes one pass over all parts.
func (h *Host) apply(ctx context.Context, w mesh.Host) ([]string, error) {
	var done []string
	err := h.walk(ctx, w, func(p part, changes []change) error {
		for _, c := range changes {
			if err := c.do(); err != nil {
				err = fmt.Errorf("%s: %s: %w", p.name, c.what, err)
				if p.name == partFirewall || p.name == partGuard {
					err = errFirewall{err}
				}
				return err
			}
			done = append(done, c.what)
			if h.settled {
				h.log.Info("host state repaired", "part", p.name, "change", c.what)
			} else {
				h.log.Debug("host state set", "part", p.name, "change", c.what)
			}
		}
		return nil
	})
	return done, err
}

// change is one difference between the kernel's state and the wanted one, and
// what removes it.
type change struct {
	what string
	do   func() error
}

// The parts whose failure may be that of a rule that native and VXLAN paths need.
const (
	partFirewall = "firewall"
	partGuard    = "guard"
)

// part is one kind of kernel state. diff compares; it changes nothing.
type part struct {
	name   string
	remedy string
	diff   func() ([]change, error)
}

// parts lists all kernel state in the order in which it is to be set. A later
// part's diff is only valid once the earlier ones are applied.
func (h *Host) parts(fs families) []part {
	const (
		again   = "the agent repairs this within its next pass; if it comes back, another program removes it"
		setting = "the agent sets it at its next pass; where that fails it lacks privileges, or /proc/sys is read-only"
	)
	return []part{
		{"names", "see the cause; nothing is set until then", func() ([]change, error) { return h.diffTaken(fs) }},
		{"routes", again, func() ([]change, error) { return diffBlackholes(fs) }},
		{"rules", again, func() ([]change, error) { return diffRules(fs) }},
		{"vxlan", again, func() ([]change, error) { return diffStaleVXLAN(fs) }},
		{partGuard, again, func() ([]change, error) { return h.diffGuard(fs) }},
		{"snat", again, func() ([]change, error) { return h.diffSNAT(fs) }},
		{partFirewall, again, func() ([]change, error) { return h.fw.diff(fs) }},
		{partGuard, again, func() ([]change, error) { return diffSpareGuard(fs) }},
		{"forwarding", setting, func() ([]change, error) { return diffRouters(fs, &h.memory) }},
		{"bridge", again, func() ([]change, error) { return diffBridge(fs) }},
		{"tun", "see the agent's log for why it could not open the TUN; `modprobe tun` where /dev/net/tun is missing",
			func() ([]change, error) { return diffTUN(fs) }},
		{"vxlan", again, func() ([]change, error) { return diffVXLAN(fs) }},
		{"routes", again, func() ([]change, error) { return diffRoutes(fs) }},
		{"paths", again, func() ([]change, error) { return h.diffLAN(fs) }},
		{"forwarding", setting, func() ([]change, error) { return diffForwarding(fs, &h.memory) }},
	}
}

// walk calls visit with the differences of each part in turn. It goes on
// without the TUN and reports ErrNoTUN at the end.
func (h *Host) walk(ctx context.Context, w mesh.Host, visit func(part, []change) error) error {
	fs, err := h.families(w)
	if err != nil {
		return err
	}
	var missing error
	for _, p := range h.parts(fs) {
		if err := ctx.Err(); err != nil {
			return err
		}
		changes, err := p.diff()
		if err != nil && !errors.Is(err, ErrNoTUN) {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err != nil {
			missing = fmt.Errorf("%s: %w", p.name, err)
		}
		if err := visit(p, changes); err != nil {
			return err
		}
	}
	return missing
}

// Cleanup removes everything Set made, the TUN included, and gives sysctls
// their remembered values back. It goes on after errors and returns them
// joined. Pods lose their network.
func (h *Host) Cleanup(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = false
	var errs []error
	step := func(name string, f func() error) {
		err := ctx.Err()
		if err == nil {
			err = f()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("host: clean up: %s: %w", name, err))
		}
	}
	// Forwarding first: without it nothing can pass while the guards go.
	step("sysctls", h.memory.restore)
	step("bridge", deleteBridge)
	step("vxlan", deleteVXLAN)
	step("tun", func() error { return ignoreTaken(deleteLink(TUNName, "tuntap")) })
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		var others taken
		step("tables", func() (err error) { others, err = takenTables(family); return err })
		step("rules", func() error { return deleteRules(family, others) })
		step("routes", func() error { return deleteRoutes(family, others) })
	}
	step("firewall", h.fw.remove)
	step("nftables", removeGuard)
	step("nftables", removeSNATTable)
	return errors.Join(errs...)
}
