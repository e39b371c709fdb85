package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/iptables"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/probe"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// checkForward sends packets as pods do, and reports what on this host drops them: our own rules cannot overrule it. What drops
// some protocols alone may be meant. See Check for about. The caller holds mu.
func (h *Host) checkForward(ctx context.Context, s plan.State, about []netip.Addr) (out []findings.Finding) {
	var packets []probe.Packet
	for _, w := range h.ways(s, about) {
		packets = append(packets, w.Forwarded(s.Of(w.Own).Keep, h.toTUN != nil)...)
	}
	cuts, err := h.send(ctx, s, packets, false)
	if err != nil {
		out = append(out, unknown(err))
	}
	for _, broken := range []bool{true, false} { // the worst of each program
		for _, c := range merged(cuts) {
			if c.all != broken || slices.ContainsFunc(out, func(f findings.Finding) bool { return f.ID == c.program }) {
				continue
			}
			grade, verb := findings.Warning, "may be"
			if broken {
				grade, verb = findings.Broken, "are"
			}
			out = append(out, finding(c.program, grade, c.forwarded(verb), c.openForward(s)))
		}
	}
	return out
}

// CheckInput reports what on this host keeps other nodes from its mesh address. What its operator has closed stays closed.
func (h *Host) CheckInput(ctx context.Context, w mesh.Host) []findings.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if err != nil || h.toTUN == nil {
		return nil // Check says why
	}
	port, _ := strconv.ParseUint(plan.KubeletPort, 10, 16)
	var packets []probe.Packet
	for _, f := range s.Held() {
		if p, ok := probe.ToNode(f, w.Nodes, uint16(port)); ok {
			packets = append(packets, p)
		}
	}
	cuts, err := h.send(ctx, s, packets, true)
	if err != nil {
		return []findings.Finding{unknown(err)}
	}
	if len(cuts) == 0 {
		return nil
	}
	c := cuts[0]
	const reach = ", so other nodes may not reach %s: kubectl logs and exec, Services, scrapes"
	detail := fmt.Sprintf("what comes to this node is dropped"+reach, "its mesh address")
	if c.table != "" {
		detail = "nftables table " + c.table + " drops or rejects what comes to this node" + fmt.Sprintf(reach, "its mesh address")
	}
	remedy := opening(c.table, "let its table accept what comes from the pod ranges", s)
	if c.program == byIPTables {
		detail = fmt.Sprintf("the host's firewall (%s INPUT) drops what its rules do not accept"+reach, c.command, c.packet.Dst)
		remedy = h.fw.OpenInput(s.Of(c.packet.Dst))
	}
	return []findings.Finding{finding("input", findings.Warning, detail+", by "+c.by, remedy)}
}

// Names of findings, by the program whose rule drops a packet.
const byIPTables, byNFT = "iptables", "nftables"

// cut is a packet that did not pass, and what dropped it.
type cut struct {
	packet                      probe.Packet
	protocols                   []string
	all                         bool // no protocol passes
	program, command, table, by string
	remedy                      string // "" for what opens a firewall
}

// again is after what time a packet is sent once more that was dropped: a limit on rates may have dropped it, or a firewall
// that was just being loaded.
const again = 200 * time.Millisecond

// send sends packets through the host's firewall and returns those that did not pass, twice. They are to this node itself if
// input.
func (h *Host) send(ctx context.Context, s plan.State, packets []probe.Packet, input bool) ([]cut, error) {
	cuts, err := h.sendOnce(ctx, s, packets, input)
	if len(cuts) == 0 || err != nil {
		return nil, err
	}
	packets = nil
	for _, c := range cuts {
		packets = append(packets, c.packet)
	}
	if !wake.Sleep(ctx, again) {
		return nil, nil
	}
	return h.sendOnce(ctx, s, packets, input)
}

func (h *Host) sendOnce(ctx context.Context, s plan.State, packets []probe.Packet, input bool) (out []cut, _ error) {
	if len(packets) == 0 || !h.applied { // a foreign bridge may have the name of ours
		return nil, nil
	}
	before := h.fw.Counts()
	fates, err := nft.Trace(ctx, len(packets), input, func(m nft.Mark) error { return probe.Send(packets, m, s.MTU, h.toTUN) })
	switch {
	case ctx.Err() != nil, errors.Is(err, unix.EOPNOTSUPP): // Check says what the kernel lacks
		return nil, nil
	case err != nil:
		return nil, err
	}
	after := h.fw.Counts()
	for i, f := range fates {
		if c, ok := h.cutBy(f, packets[i], before, after); ok {
			out = append(out, c)
		}
	}
	return out, nil
}

// unknown is the finding where no probe could be sent or followed.
func unknown(err error) findings.Finding {
	return finding(byNFT, findings.Warning, "whether the host's firewall drops pods' packets is not known: "+err.Error(), "fix the cause; until then see `iptables -S` and `nft list ruleset` yourself")
}

// cutBy says what dropped a packet; ok is false if nothing did, a rule of our own, or routing.
func (h *Host) cutBy(f nft.Fate, p probe.Packet, before, after iptables.Counts) (c cut, ok bool) {
	c, v6 := cut{packet: p}, p.Src.Is6()
	switch r := f.Rule; {
	case f.Passed || r.Ours() || strings.HasPrefix(r.Chain, iptables.Prefix):
		return c, false
	case r.IPTables():
		c.program, c.command, c.table = byIPTables, iptables.Command(v6, false), r.Table
		c.by = h.fw.RuleText(v6, r.Table, r.Chain, r.Number, r.String())
		return c, true
	case r.Chain != "":
		c.program, c.table, c.by = byNFT, r.Family+" "+r.Table, r.String()
		return c, true
	case f.Hook == "":
		c.program = "forwarding"
		if f.Behind != "" {
			c.by, c.remedy = unrouted(p)
		}
		return c, c.by != ""
	}
	rules, foreign := after.Since(before, v6, f.Table, f.Hook)
	if len(rules) > 0 {
		c.program, c.command, c.table, c.by = byIPTables, iptables.Command(v6, true), f.Table, strings.Join(rules, " or ")
		return c, foreign
	}
	c.program, c.by = byNFT, "no rule that the kernel names: in "+f.Hook+", behind priority "+f.Behind[strings.LastIndex(f.Behind, "_")+1:]
	return c, true
}

// unrouted names the switch, filter or route by which the kernel drops a packet that no rule does; "" for none.
func unrouted(p probe.Packet) (by, remedy string) {
	keys := []string{"net/ipv4/ip_forward", sysctl.Forwarding(p.In)}
	if p.Src.Is6() {
		keys = []string{"net/ipv6/conf/all/forwarding"}
	}
	for _, k := range keys {
		if v, err := sysctl.Read(k); err == nil && v == "0" {
			return "the kernel's switch " + k + " = 0", "`sysctl -w " + k + "=1`, and find what sets it: a file in /etc/sysctl.d, systemd-networkd (`IPv4Forwarding=yes` in the interface's .network file), hardening"
		}
	}
	_, err := netlink.RouteGetWithOptions(p.Dst.AsSlice(), &netlink.RouteGetOptions{Iif: p.In, SrcAddr: p.Src.AsSlice()})
	if err == nil {
		return "", ""
	}
	all, _ := sysctl.Read(sysctl.RPFilter("all"))
	one, _ := sysctl.Read(sysctl.RPFilter(p.In))
	if by = "the kernel's routes and rules"; p.Src.Is4() && max(all, one) == "1" { // newer kernels do not tell one from the other
		by += ", or its filter " + sysctl.RPFilter(p.In) + " = 1"
	}
	return by + ": " + err.Error(), fmt.Sprintf("see `ip route get %s from %s iif %s`, and delete the route or rule that is in the way, or set rp_filter to 2", p.Dst, p.Src, p.In)
}

// merged joins the cuts of packets that differ in protocol alone.
func merged(cuts []cut) (out []cut) {
	const protocols = 3
	for _, c := range cuts {
		same := func(o cut) bool {
			return o.packet.In == c.packet.In && o.packet.Src == c.packet.Src && o.packet.Dst == c.packet.Dst
		}
		i := slices.IndexFunc(out, same)
		if i < 0 {
			i, out = len(out), append(out, c)
		}
		out[i].protocols = append(out[i].protocols, c.packet.Name())
		out[i].all = len(out[i].protocols) == protocols
	}
	return out
}

// forwarded says which forwarded packets are dropped, and by which rule.
func (c cut) forwarded(verb string) string {
	what := "forwarded packets are dropped"
	switch {
	case c.program == byIPTables:
		what = fmt.Sprintf("%s -t %s drops forwarded packets", c.command, c.table)
	case c.table != "":
		what = "nftables table " + c.table + " drops or rejects forwarded packets that iptables has accepted"
	}
	out := c.packet.Out
	if out == "" {
		out = "any interface"
	}
	return fmt.Sprintf("%s: pods %s unreachable: %s from %s (%s) to %s (%s), by %s", what, verb, strings.Join(c.protocols, ", "),
		c.packet.Src, c.packet.In, c.packet.Dst, out, c.by)
}

// openForward says how to let them pass.
func (c cut) openForward(s plan.State) string {
	switch {
	case c.remedy != "":
		return c.remedy
	case c.program == byIPTables:
		return fmt.Sprintf("see `%s -t %s -S`: delete that rule, or accept packets from and to the pod ranges before it", c.command, c.table)
	case c.table == "":
		return "see `nft list hooks`: a kernel module or a BPF program there drops packets; unload it, or exclude the pod ranges from it"
	}
	return opening(c.table, "let its table accept forwarded packets from and to the pod ranges: `nft -a list table "+c.table+"` shows chain and rule", s)
}

// opening says how a table lets the pod ranges in; other is for tables of programs not known here.
func opening(table, other string, s plan.State) string {
	if !strings.HasSuffix(table, " firewalld") {
		return other
	}
	remedy := "firewall-cmd --permanent --zone=trusted"
	for _, r := range s.Ranges() {
		remedy += " --add-source=" + r.String()
	}
	if s.LAN.VXLAN {
		remedy += fmt.Sprintf("; firewall-cmd --permanent --add-port=%d/udp", s.LAN.VXLANPort)
	}
	return remedy + "; firewall-cmd --reload"
}

// rules identify what all firewalls of this host hold.
type rules struct {
	known      bool
	generation uint32 // of nftables
	legacy     [sha256.Size]byte
}

func (h *Host) rules() rules {
	n, _ := nft.Generation() // 0 where the kernel has no nftables
	return rules{true, n, h.fw.LegacyRules()}
}

// after is r as it is once it was probed, once or twice, or nothing known if others have changed something meanwhile.
func (r rules) after(now rules) rules {
	changes := now.generation - r.generation
	if r.legacy != now.legacy || changes != 0 && changes != nft.Transactions && changes != 2*nft.Transactions {
		return rules{}
	}
	return now
}

// Suspect reports whether another program has changed the host's firewall since Warnings probed it.
func (h *Host) Suspect() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.probed.known || h.probed != h.rules()
}
