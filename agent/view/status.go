package view

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"edgemesh/agent/control"
)

// Status prints the summary, what is wrong, relays, the peers that f selects, and pools of addresses.
func Status(w io.Writer, on Screen, s control.Status, f Filter, now time.Time) {
	summary(w, on, s, now)
	problems(w, on, s)
	relays(w, on, s.Relays)
	peers(w, on, s.Peers, f, now)
	pools(w, on, s.Pools, now)
}

// summary is what an operator looks for first.
func summary(w io.Writer, on Screen, s control.Status, now time.Time) {
	head := []string{"edgemesh " + cmp.Or(clean(s.Version), "(version unknown)")}
	if !s.StartedAt.IsZero() {
		head = append(head, "up "+Duration(now.Sub(s.StartedAt)))
	}
	if s.Site != "" {
		head = append(head, "site "+clean(s.Site))
	}
	fmt.Fprintf(w, "%s  %s\n", on.paint(bold, "node "+clean(s.Node)), strings.Join(head, ", "))
	var t table
	t.add(plain, "mesh address", cmp.Or(strings.Join(s.Addresses, ", "), "none"))
	t.add(plain, "peer ID", s.PeerID)
	nat := cmp.Or(s.NAT.Detail, "unknown")
	if s.NAT.Router != "" {
		nat += "; " + s.NAT.Router
	}
	t.add(plain, "NAT", nat)
	t.add(relayColour(s.Relays), "relays", relaysText(s.Relays))
	t.add(plain, "peers", peersText(s.Peers))
	text, c := warnings(s)
	t.add(c, "warnings", text)
	t.print(w, on)
}

func relaysText(all []control.RelayStatus) string {
	if len(all) == 0 {
		return "none in the membership"
	}
	connected, reserved := 0, 0
	for _, r := range all {
		if r.Connected {
			connected++
		}
		if r.Reserved {
			reserved++
		}
	}
	return fmt.Sprintf("%d, of them %d connected, %d reserved", len(all), connected, reserved)
}

func relayColour(all []control.RelayStatus) colour {
	for _, r := range all {
		if r.Reserved {
			return plain
		}
	}
	return yellow
}

// warnings counts what is wrong.
func warnings(s control.Status) (string, colour) {
	n := map[control.Severity]int{}
	for _, p := range s.Problems {
		n[p.Severity]++
	}
	var parts []string
	c := green
	if n[control.Broken] > 0 {
		parts, c = append(parts, fmt.Sprintf("%d broken", n[control.Broken])), red
	}
	if n[control.Warning] > 0 {
		parts = append(parts, count(n[control.Warning], "warning", "warnings"))
	}
	if len(s.Fallbacks) > 0 {
		parts = append(parts, fmt.Sprintf("%d degraded", len(s.Fallbacks)))
	}
	if len(parts) > 0 && c == green {
		c = yellow
	}
	if len(parts) == 0 {
		return "none", c
	}
	return strings.Join(parts, ", "), c
}

// problems are not cut to the screen's width: they have to be read to the end.
func problems(w io.Writer, on Screen, s control.Status) {
	on.Width = 0
	if len(s.Problems) > 0 {
		var t table
		t.add(bold, "PROBLEM", "CAUSE", "REMEDY")
		for _, p := range s.Problems {
			t.add(severityColour(p.Severity), p.Check, p.Detail, p.Remedy)
		}
		fmt.Fprintln(w)
		t.print(w, on)
	}
	if len(s.Fallbacks) > 0 {
		var t table
		t.add(bold, "DEGRADED", "EFFECT", "REMEDY")
		for _, f := range s.Fallbacks {
			t.add(yellow, f.What, f.Effect, f.Remedy)
		}
		fmt.Fprintln(w)
		t.print(w, on)
	}
}

func relays(w io.Writer, on Screen, all []control.RelayStatus) {
	if len(all) == 0 {
		return
	}
	var t table
	t.add(bold, "RELAY", "ADDRESS", "CONNECTED", "RESERVED", "RTT", "ERROR")
	for _, r := range all {
		c, reserved := plain, yesNo(r.Reserved)
		if r.Spare {
			reserved = "spare"
		}
		if !r.Connected && !r.Spare {
			c = yellow
		}
		addr := r.Addr
		if r.Proxy != "" {
			addr += " via proxy " + r.Proxy
		}
		t.add(c, shortID(r.PeerID), addr, yesNo(r.Connected), reserved, millis(r.RTTMs), cmp.Or(r.Error, "-"))
	}
	fmt.Fprintln(w)
	t.print(w, on)
}

func pools(w io.Writer, on Screen, all []control.Pool, now time.Time) {
	if len(all) == 0 {
		return
	}
	var t table
	t.add(bold, "POOL", "ADDRESSES", "USED", "RESERVED", "OLDEST")
	for _, p := range all {
		size, oldest := strconv.FormatUint(p.Size, 10), "-"
		if p.Size >= 1<<32 {
			size = "2^32 or more"
		}
		if p.Oldest != nil {
			oldest = since(p.Oldest, now) + " ago"
		}
		c := plain
		if uint64(max(p.Used, 0)) >= p.Size {
			c = red
		}
		t.add(c, strings.Join(p.Blocks, ","), size, strconv.Itoa(p.Used), strconv.Itoa(p.Kept), oldest)
	}
	fmt.Fprintln(w)
	t.print(w, on)
}
