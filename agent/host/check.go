package host

import (
	"context"
	"fmt"
	"strings"

	"edgemesh/agent/control"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/mesh"
)

func finding(check string, grade control.Severity, detail, remedy string) control.Finding {
	return control.Finding{Check: check, Severity: grade, Detail: detail, Remedy: remedy}
}

// Check compares the kernel's state with w and changes nothing: what Set would
// repair is broken now.
func (h *Host) Check(ctx context.Context, w mesh.Host) []control.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if err != nil {
		return []control.Finding{finding("host", control.Broken, "kernel state was not compared: "+err.Error(), "install what is missing and restart the agent")}
	}
	var out []control.Finding
	at := map[string]int{} // finding of each part; several parts may share a name
	for _, p := range h.parts(s, h.applied) {
		if ctx.Err() != nil {
			return append(out, finding("host", control.Broken, "check not finished: "+ctx.Err().Error(), "try again"))
		}
		changes, err := p.diff()
		cause := ""
		if err != nil {
			cause = err.Error()
		} else if len(changes) > 0 {
			cause = differences(changes)
		}
		i, seen := at[p.name]
		if !seen {
			i = len(out)
			at[p.name] = i
			out = append(out, finding(p.name, control.OK, p.present(), ""))
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
		if held, err := rtnetlink.TUNHeld(); err != nil || !held {
			out[i] = finding("tun", control.Broken, "no process has the TUN "+plan.TUNName+" open: packets to other nodes are dropped", "start the agent")
		}
	}
	return append(out, h.inTheWay(ctx, w, s)...)
}

// Warnings reports what on this host obstructs the pod network although Set succeeds. It
// costs as much as reading the firewall.
func (h *Host) Warnings(ctx context.Context, w mesh.Host) []control.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if err != nil {
		return nil // Set fails, too, and says why
	}
	return h.inTheWay(ctx, w, s)
}

// inTheWay is Warnings for a caller that holds mu.
func (h *Host) inTheWay(ctx context.Context, w mesh.Host, s plan.State) []control.Finding {
	var out []control.Finding
	warn := func(check, detail, remedy string) {
		if detail != "" {
			out = append(out, finding(check, control.Warning, detail, remedy))
		}
	}
	if h.can.NoIPv6 != "" && wantsIPv6(w) {
		warn("ipv6", "pods of this node get no IPv6: "+h.can.NoIPv6, "enable IPv6 on this host, install ip6tables, or give the node IPv4 blocks only")
	}
	detail, remedy := nft.CheckForward(ctx, h.find("nft"), s)
	warn("nftables", detail, remedy)
	detail, remedy = h.fw.Mixed()
	warn("iptables", detail, remedy)
	if detail, remedy := rtnetlink.CheckWay(s); detail != "" {
		out = append(out, finding("way", control.Broken, detail, remedy))
	}
	if why := reasons(h.can); why != "" {
		warn("lan", "LAN paths unavailable: "+why, "see the cause; packets take the tunnel meanwhile. To turn these paths off on purpose, set lan.native or lan.vxlan: false")
	}
	return out
}

// reasons returns why this host can hold no native or VXLAN paths, "" when it can.
func reasons(can Capabilities) string {
	switch {
	case can.NoNative == can.NoVXLAN:
		return can.NoNative
	case can.NoVXLAN == "":
		return "native: " + can.NoNative
	case can.NoNative == "":
		return "vxlan: " + can.NoVXLAN
	}
	return "native: " + can.NoNative + "; vxlan: " + can.NoVXLAN
}

// differences puts the changes needed in one line.
func differences(changes []plan.Change) string {
	const most = 4
	var parts []string
	for _, c := range changes[:min(len(changes), most)] {
		parts = append(parts, c.What)
	}
	s := fmt.Sprintf("%d changes needed: %s", len(changes), strings.Join(parts, "; "))
	if n := len(changes) - most; n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}
