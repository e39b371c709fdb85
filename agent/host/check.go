package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

func finding(check string, grade control.Severity, detail, remedy string) control.Finding {
	return control.Finding{Check: check, Severity: grade, Detail: detail, Remedy: remedy}
}

// Present reports whether an agent has set up this host since its last boot, and none has
// cleaned up.
func Present() (bool, error) {
	rules, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("host: list rules: %w", err)
	}
	return slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.Protocol == RouteProtocol && r.Table == TableID
	}), nil
}

// Check compares the kernel's state with w and changes nothing: what Set would
// repair is broken now.
func (h *Host) Check(ctx context.Context, w mesh.Host) []control.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	fs, err := h.families(w)
	if err != nil {
		return []control.Finding{finding("host", control.Broken, err.Error(), "install what is missing and restart the agent")}
	}
	var out []control.Finding
	at := map[string]int{} // finding of each part; several parts may share a name
	for _, p := range h.parts(fs) {
		if ctx.Err() != nil {
			return append(out, finding("host", control.Broken, "not examined to the end: "+ctx.Err().Error(), "try again"))
		}
		changes, err := p.diff()
		cause := ""
		if err != nil {
			cause = err.Error()
		} else if len(changes) > 0 {
			cause = missing(changes)
		}
		i, seen := at[p.name]
		if !seen {
			i = len(out)
			at[p.name] = i
			out = append(out, finding(p.name, control.OK, "as it should be", ""))
		}
		if cause == "" {
			continue
		}
		if f := &out[i]; f.Severity == control.OK {
			*f = finding(p.name, control.Broken, cause, p.remedy)
		} else {
			f.Detail += "; " + cause
		}
	}
	if i := at["tun"]; out[i].Severity == control.OK {
		if err := tunHeld(); err != nil {
			out[i] = finding("tun", control.Broken, err.Error(), "start the agent")
		}
	}
	return append(out, h.inTheWay(ctx, w, fs)...)
}

// Warnings tells of what on this host is in the way of ours, though Set succeeds. It
// costs as much as reading the firewall.
func (h *Host) Warnings(ctx context.Context, w mesh.Host) []control.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	fs, err := h.families(w)
	if err != nil {
		return nil // Set fails, too, and tells
	}
	return h.inTheWay(ctx, w, fs)
}

// inTheWay is what Warnings tells. The caller holds mu.
func (h *Host) inTheWay(ctx context.Context, w mesh.Host, fs families) []control.Finding {
	var out []control.Finding
	if h.noIPv6 != "" && wantsIPv6(w) {
		out = append(out, finding("ipv6", control.Warning, "pods of this node get no IPv6: "+h.noIPv6,
			"enable IPv6 on this host, install ip6tables, or give the node IPv4 blocks only"))
	}
	for _, look := range []func() (control.Finding, bool){
		func() (control.Finding, bool) { return checkNativeFilter(ctx, h.fw.look, fs) },
		h.fw.mixed,
		func() (control.Finding, bool) { return checkWay(fs) },
		func() (control.Finding, bool) { return h.checkLAN(w) },
	} {
		if f, ok := look(); ok {
			out = append(out, f)
		}
	}
	return out
}

// checkWay asks the kernel where it would send a packet for a pod elsewhere: other
// programs' rules and tables may come before ours (a VPN that takes all traffic).
func checkWay(fs families) (control.Finding, bool) {
	tun, err := findLink(TUNName, "tuntap")
	if err != nil || tun == nil || fs.keep {
		return control.Finding{}, false // told already; where pods are another plugin's, its routes count
	}
	for _, f := range fs.held() {
		if !f.gateway.IsValid() {
			continue
		}
		for _, p := range f.ranges {
			to := lastAddr(p)
			if slices.ContainsFunc(f.blocks, func(b netip.Prefix) bool { return b.Contains(to) }) {
				continue
			}
			routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
			if err != nil || len(routes) == 0 || ourTable(routes[0].Table) {
				continue // a blackhole is told as a missing route
			}
			detail := fmt.Sprintf("packets for the pod range %s do not come to the pod network: another rule sends them to routing table %d", p, routes[0].Table)
			if link, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
				detail += ", interface " + link.Attrs().Name
			}
			return finding("way", control.Broken, detail, fmt.Sprintf("see `ip rule` and `ip route get %s`: move that rule behind priority %d, or take the range out of it", to, RulePref)), true
		}
	}
	return control.Finding{}, false
}

// lastAddr is the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// checkLAN tells why this host can hold no native or VXLAN paths that are wanted.
func (h *Host) checkLAN(w mesh.Host) (control.Finding, bool) {
	noNative, noVXLAN := h.LAN()
	var why []string
	if w.LAN.Native && noNative != "" {
		why = append(why, "no native paths: "+noNative)
	}
	if w.LAN.VXLAN && noVXLAN != "" {
		why = append(why, "no VXLAN paths: "+noVXLAN)
	}
	if len(why) == 0 {
		return control.Finding{}, false
	}
	return finding("lan", control.Warning, strings.Join(why, "; "),
		"see the cause; packets take the tunnel meanwhile. lan.native and lan.vxlan: false say that this is on purpose"), true
}

// missing puts what is to be changed in one line.
func missing(changes []change) string {
	const most = 4
	var parts []string
	for _, c := range changes[:min(len(changes), most)] {
		parts = append(parts, c.what)
	}
	s := "missing: " + strings.Join(parts, "; ")
	if n := len(changes) - most; n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}

// tunHeld tells whether a process has the TUN open: the kernel gives it a
// carrier then.
func tunHeld() error {
	link, err := findLink(TUNName, "tuntap")
	if err != nil {
		return err
	}
	if link == nil {
		return ErrNoTUN
	}
	if link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		return errors.New("no process has the TUN " + TUNName + " open: packets to other nodes are dropped")
	}
	return nil
}
