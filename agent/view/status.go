package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// pipeLines is how long a status is about where nobody scrolls; pipePeers of them are for peers whatever else there is.
const (
	pipeLines = 50
	pipePeers = 20
)

// Status prints the verdict, the summary, what is wrong, relays, the peers that f selects, pools of addresses and the next command. Unless f selects, it
// fits the screen: peers are left out first, then pools, then relays, of which the summary has the numbers, and findings last.
func Status(w io.Writer, on Screen, s control.Status, f Filter, now time.Time) {
	part := func(print func(io.Writer)) string {
		var b strings.Builder
		print(&b)
		return b.String()
	}
	head := part(func(w io.Writer) { summary(w, on, s, now) })
	trouble := part(func(w io.Writer) { wrong(w, on, s, now) })
	links := part(func(w io.Writer) { relays(w, on, s.Relays) })
	full := part(func(w io.Writer) { pools(w, on, s.Pools, now) })
	list, left := newListed(on, s.Peers, f, now), 0
	switch {
	case f.whole():
	case on.Height == 0:
		left = max(pipePeers, pipeLines-on.Rows(head+trouble+links+full))
	default:
		space := on.Height - 2 - on.Rows(head) // one line is for the next command, one for the prompt or cursor
		if most := max(space-list.least(), space/3); on.Rows(trouble) > most {
			trouble = first(on, trouble, most)
		}
		space -= on.Rows(trouble)
		links, full = fitting(on, links, full, space-list.least())
		left = space - on.Rows(links+full)
	}
	fmt.Fprint(w, head, trouble, links)
	list.print(w, left)
	if len(list.groups) == 0 && (f.Path != "" || f.Site != "") {
		fmt.Fprintln(w, "\nno peer is "+f.text())
	}
	fmt.Fprint(w, full)
	on.Line(w, dim, "next: ", Next(s))
}

// fitting is relays and pools, as far as there is space for them.
func fitting(on Screen, relays, pools string, space int) (r, p string) {
	if on.Rows(relays+pools) <= space {
		return relays, pools
	}
	if note := on.Paint(dim, "pools: --all") + "\n"; on.Rows(relays)+1 <= space {
		return relays, note
	}
	if space < 1 {
		return "", ""
	}
	return "", on.Paint(dim, "relays and pools: --all") + "\n"
}

// first is the beginning of text that takes at most so many rows.
func first(s Screen, text string, rows int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if rows -= s.Rows(line); rows < 1 {
			break
		}
		out.WriteString(line)
	}
	return out.String() + s.Paint(dim, wording.Elide("… more: edgemesh-agent doctor", s.Width)) + "\n"
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
	head = append(head, "warnings: "+counted(s))
	c := green
	if wrong := findings.Only(s.Found(), findings.Broken, findings.Warning); len(wrong) > 0 {
		c = severityColour(wrong[0].Severity)
	}
	on.Line(w, c, "", Verdict(s))
	fmt.Fprintf(w, "%s  %s\n", on.Paint(bold, "node "+clean(s.Node)), strings.Join(head, ", "))
	var t table
	t.Add(plain, "mesh address", cmp.Or(strings.Join(s.Addresses, ", "), "none"))
	t.Add(plain, "peer ID", s.PeerID)
	nat := cmp.Or(s.NAT.Detail, "unknown")
	if s.NAT.Router != "" {
		nat += "; " + s.NAT.Router
	}
	t.Add(plain, "NAT", nat)
	t.Add(relayColour(s.Relays), "relays", relaysText(s.Relays))
	t.Add(plain, "peers", peersText(s))
	if u := s.Upkeep; u != nil {
		t.Add(plain, "upkeep", upkeepText(u, now))
	}
	t.Print(w, on)
}

// upkeepText is what the node costs by itself.
func upkeepText(u *control.Upkeep, now time.Time) string {
	metered := ""
	if u.Metered {
		metered = "; metered, by " + clean(u.MeteredFrom)
	}
	kB, age := float64(u.TxBytes+u.RxBytes)/1e3, now.Sub(u.Since)
	rate := fmt.Sprintf("%.0f kB since the start", kB)
	if u.MBPerMonth != nil {
		rate = fmt.Sprintf("%.0f kB an hour, %.0f MB a month at this rate", kB/age.Hours(), *u.MBPerMonth)
	}
	return fmt.Sprintf("%s, beside %.1f MB for pods%s", rate, float64(u.Carried.Tx+u.Carried.Rx)/1e6, metered)
}

// counted is how much is wrong, by severity.
func counted(s control.Status) string {
	var parts []string
	for _, x := range []findings.Severity{findings.Broken, findings.Warning} {
		if n := len(findings.Only(s.Found(), x)); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, x))
		}
	}
	if n := len(s.Fallbacks); n > 0 {
		parts = append(parts, fmt.Sprintf("%d degraded", n))
	}
	return wording.List(parts)
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

func relays(w io.Writer, on Screen, all []control.RelayStatus) {
	if len(all) == 0 {
		return
	}
	t := table{Below: []string{"ADDRESS", "ERROR"}}
	t.Add(bold, "RELAY", "ADDRESS", "CONNECTED", "RESERVED", "RTT", "ERROR")
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
		rtt := millis(r.RTTMs)
		if !r.Connected && !r.Spare { // it is of a connection that is over
			rtt = "-"
		}
		t.Add(c, wording.ShortID(r.PeerID), addr, yesNo(r.Connected), reserved, rtt, cmp.Or(r.Error, "-"))
	}
	fmt.Fprintln(w)
	t.Print(w, on)
}

func pools(w io.Writer, on Screen, all []control.Pool, now time.Time) {
	if len(all) == 0 {
		return
	}
	var t table
	t.Add(bold, "POOL", "ADDRESSES", "USED", "RESERVED", "OLDEST")
	for _, p := range all {
		oldest := "-"
		if p.Oldest != nil {
			oldest = since(p.Oldest, now) + " ago"
		}
		c := plain
		if uint64(max(p.Used, 0)) >= p.Size {
			c = red
		}
		t.Add(c, strings.Join(p.Blocks, ", "), wording.Number(p.Size), wording.Number(p.Used), wording.Number(p.Kept), oldest)
	}
	fmt.Fprintln(w)
	t.Print(w, on)
}
