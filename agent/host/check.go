package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// Severity grades a finding.
type Severity string

// The grades. A Warning leaves traffic well.
const (
	OK      Severity = "ok"
	Warning Severity = "warning"
	Broken  Severity = "broken"
)

// Finding is one thing Check looked at.
type Finding struct {
	Name     string
	Severity Severity
	Cause    string // what was found
	Remedy   string // what to do; "" when it is OK
}

// Check compares the kernel's state with w and changes nothing: what Set would
// repair is broken now.
func (h *Host) Check(ctx context.Context, w mesh.Host) []Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	fs, err := h.families(w)
	if err != nil {
		return []Finding{{"host", Broken, err.Error(), "install what is missing and restart the agent"}}
	}
	var out []Finding
	at := map[string]int{} // finding of each part; several parts may share a name
	for _, p := range h.parts(fs) {
		if ctx.Err() != nil {
			return append(out, Finding{"host", Broken, "not examined to the end: " + ctx.Err().Error(), "try again"})
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
			out = append(out, Finding{p.name, OK, "as it should be", ""})
		}
		if cause == "" {
			continue
		}
		if f := &out[i]; f.Severity == OK {
			*f = Finding{p.name, Broken, cause, p.remedy}
		} else {
			f.Cause += "; " + cause
		}
	}
	if i := at["tun"]; out[i].Severity == OK {
		if err := tunHeld(); err != nil {
			out[i] = Finding{"tun", Broken, err.Error(), "start the agent"}
		}
	}
	if h.noIPv6 != "" && wantsIPv6(w) {
		out = append(out, Finding{"ipv6", Warning, "pods of this node get no IPv6: " + h.noIPv6,
			"enable IPv6 on this host, install ip6tables, or give the node IPv4 blocks only"})
	}
	if f, ok := checkNativeFilter(ctx, h.fw.look); ok {
		out = append(out, f)
	}
	return append(out, checkOverlaps(fs))
}

// checkNativeFilter looks for what no rule of ours can overrule: an nftables
// chain beside iptables' own whose policy drops what is forwarded (firewalld).
func checkNativeFilter(ctx context.Context, look lookup) (Finding, bool) {
	nft := look("nft")
	if nft == "" {
		return Finding{}, false
	}
	out, err := exec.CommandContext(ctx, nft, "list", "chains").Output()
	if err != nil {
		return Finding{}, false // no nftables in the kernel, so no such chain
	}
	var table string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "table "); ok {
			table = strings.TrimSuffix(name, " {")
		}
		iptables := table == "ip filter" || table == "ip6 filter" // looked at as FORWARD
		if !iptables && strings.HasPrefix(line, "type filter hook forward") && strings.Contains(line, "policy drop") {
			return Finding{"nftables", Warning,
				"table " + table + " drops forwarded packets by policy, after iptables accepted them",
				"if pods have no connection, accept the interfaces " + BridgeName + " and " + TUNName + " there (firewalld: add both to the zone trusted)"}, true
		}
	}
	return Finding{}, false
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

// checkOverlaps looks for addresses of others inside the cluster's ranges: our
// rule takes their traffic, and our firewall drops what they send.
func checkOverlaps(fs families) Finding {
	const name = "addresses"
	var taken []string
	links, err := dump(netlink.LinkList)
	if err != nil {
		return Finding{name, Warning, "list interfaces: " + err.Error(), "run doctor as root"}
	}
	for _, l := range links {
		if n := l.Attrs().Name; n == BridgeName || n == TUNName {
			continue
		}
		for _, f := range fs.held() {
			addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, f.id()) })
			if err != nil {
				continue // the interface went meanwhile
			}
			for _, a := range addrs {
				p := prefixOf(a.IPNet)
				for _, r := range f.ranges {
					if overlaps(p, r) {
						taken = append(taken, fmt.Sprintf("%s of %s is inside the cluster's range %s", p, l.Attrs().Name, r))
					}
				}
			}
		}
	}
	if len(taken) > 0 {
		return Finding{name, Broken, strings.Join(taken, "; "),
			"give that interface another network (docker: \"bip\" and \"default-address-pools\"), or the cluster other podCIDRs"}
	}
	return Finding{name, OK, "no other interface has addresses inside the cluster's ranges", ""}
}

// overlaps leaves link-local addresses out, which every interface has.
func overlaps(p, r netip.Prefix) bool {
	return !p.Addr().IsLinkLocalUnicast() && p.Overlaps(r)
}
