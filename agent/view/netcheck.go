package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/netcheck"
	"edgemesh/internal/wording"
)

// Netcheck prints what the network lets through.
func Netcheck(w io.Writer, on Screen, r netcheck.Report) {
	var t table
	t.Add(plain, "NAT", r.NAT.Detail)
	for _, m := range r.Mapped {
		t.Add(plain, m.Family, fmt.Sprintf("%s is seen as %s by %s", m.Local, m.Seen, m.Server))
	}
	switch {
	case r.UDP:
		t.Add(green, "UDP", "passes")
	case r.UDPTried():
		t.Add(yellow, "UDP", "no relay answers")
	default:
		t.Add(plain, "UDP", "not measured: no UDP address of a relay is known")
	}
	t.Add(plain, "addresses", fmt.Sprintf("IPv4 %s, IPv6 %s", yesNo(r.IPv4), yesNo(r.IPv6)))
	t.Add(plain, "port mapping", cmp.Or(r.PortMapping, "not requested"))
	t.Add(plain, "proxy", cmp.Or(r.Proxy, "none"))
	for _, u := range r.Uplinks {
		t.Add(plain, "MTU", fmt.Sprintf("%d bytes on %s (%s)", u.MTU, u.Name, strings.Join(wording.Texts(u.Addrs), ", ")))
	}
	t.Add(plain, "clock", clockText(r.Clock))
	t.Print(w, on)
	if len(r.Relays) > 0 {
		var t table
		t.Add(bold, "RELAY", "TCP", "UDP", "WEBSOCKET", "ERROR")
		for _, x := range r.Relays {
			c, why := plain, []string{}
			for name, a := range map[string]*netcheck.Answer{"tcp": x.TCP, "udp": x.UDP, "websocket": x.WS} {
				if a != nil && a.Error != "" {
					c, why = yellow, append(why, name+" "+a.Addr+": "+a.Error)
				}
			}
			t.Add(c, cmp.Or(wording.ShortID(x.PeerID), hostOf(x), "-"), answerText(x.TCP), answerText(x.UDP), answerText(x.WS), cmp.Or(strings.Join(slices.Sorted(slices.Values(why)), "; "), "-"))
		}
		fmt.Fprintln(w)
		t.Print(w, on)
	}
	if len(r.Problems) > 0 {
		fmt.Fprintln(w)
		Findings(w, on, r.Problems)
	}
}

// hostOf names a relay without a peer ID.
func hostOf(x netcheck.Relay) string {
	for _, a := range []*netcheck.Answer{x.TCP, x.UDP, x.WS} {
		if a != nil {
			host, _ := netcheck.HostOf(a.Addr)
			return host
		}
	}
	return ""
}

func answerText(a *netcheck.Answer) string {
	switch {
	case a == nil:
		return "-"
	case a.RTTMs == nil:
		return "no"
	}
	return millis(a.RTTMs)
}

func clockText(c *netcheck.Clock) string {
	if c == nil {
		return "not compared: no relay reported the time"
	}
	off := time.Duration(c.OffsetMs) * time.Millisecond
	switch {
	case off.Abs() < 2*time.Second:
		return "the same as the relay's, to the second"
	case off > 0:
		return Duration(off) + " ahead of the relay's"
	}
	return Duration(-off) + " behind the relay's"
}
