package punch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/sense"
)

// outcome is the result of an attempt to get direct connections.
type outcome struct {
	at      time.Time
	missing []string // transports that were wanted and are still missing
	dials   []string // what failed, for the log
	causes  []cause
	apart   string       // why nothing was dialed: no IP version in common
	outside []netip.Addr // where others see this node, if that is not an address of its own
}

// cause is why one transport failed, once for each different reason.
type cause struct{ transport, why string }

// noAnswer is the cause of most failures: packets went nowhere.
const noAnswer = conns.NoAnswer

// noHairpin is why a dial to this node's own outside address failed: the peer has the same one.
const noHairpin = "the two sites share their outside address, and its router does not lead back to it (no hairpin)"

// add records a dial that failed.
func (o *outcome) add(e endpoint.Endpoint, why string) {
	if slices.Contains(o.outside, e.Addr.Addr()) { // what its router says, a refusal for instance, is not about the peer
		why = noHairpin
	}
	why = wording.Elide(why, 120)
	o.dials = append(o.dials, fmt.Sprintf("%s: %s", e, why))
	if e.Addr.Addr().IsPrivate() { // mostly of another site, which says nothing
		why = noAnswer
	}
	if c := (cause{endpoint.TransportName(e.UDP), why}); !slices.Contains(o.causes, c) {
		o.causes = append(o.causes, c)
	}
}

// text is the outcome in one line: "last punch 12:03:10 timed out (QUIC, TCP)".
func (o outcome) text() string {
	var names, details []string
	timedOut := true
	if o.apart != "" {
		return o.apart
	}
	for _, t := range o.missing {
		names = append(names, strings.ToUpper(t))
		var whys []string
		for _, c := range o.causes {
			// "no answer" of some addresses says little beside other causes.
			if c.transport == t && c.why != noAnswer {
				whys = append(whys, c.why)
				timedOut = false
			}
		}
		if len(whys) == 0 {
			whys = []string{noAnswer}
		}
		slices.Sort(whys)
		details = append(details, strings.ToUpper(t)+": "+strings.Join(whys, ", "))
	}
	slices.Sort(names)
	slices.Sort(details)
	when := "last punch " + o.at.Format(time.TimeOnly)
	if timedOut {
		return fmt.Sprintf("%s timed out (%s)", when, strings.Join(names, ", "))
	}
	return fmt.Sprintf("%s failed (%s)", when, strings.Join(details, "; "))
}

// history is what came of the attempts with a peer.
type history struct {
	last   outcome
	failed int // attempts in a row with that outcome
}

// add adds an attempt that wanted so many transports.
func (h *history) add(o outcome, want int) {
	h.last = o
	if h.failed++; len(o.missing) < want || o.apart != "" {
		h.failed = 1 // with what is still missing
	}
}

// Tried is what was tried to get the direct paths that are missing.
type Tried struct {
	Apart   bool      // nothing was dialed: the two have no IP version in common
	Failed  int       // attempts with the same outcome in a row
	Last    time.Time // when the last one ended
	Missing []string  // transports, by name
	Dials   []string  // the endpoints that were dialed in the last one, each with what came of it
	Text    string    // the last one in a line
}

// whyRelayed explains by the NATs on both sides.
func whyRelayed(mine, theirs ladder.NAT) string {
	switch {
	case mine == ladder.NATNone && theirs == ladder.NATNone:
		return "no NAT here or there, but a firewall drops what the other side sends"
	case mine.PerDestination() && theirs.PerDestination():
		return "both NATs give each destination another port"
	case mine.PerDestination() && ladder.Hopeless(mine, theirs):
		return "NAT here " + sense.Text(mine) + "; the peer's accepts only addresses it has sent to"
	case theirs.PerDestination() && ladder.Hopeless(mine, theirs):
		return "the peer's NAT " + sense.Text(theirs) + "; the one here accepts only addresses it has sent to"
	}
	return natAt("here", mine) + "; " + natAt("there", theirs)
}

func natAt(where string, nat ladder.NAT) string {
	if nat == ladder.NATNone {
		return "no NAT " + where
	}
	return "NAT " + where + " " + sense.Text(nat)
}
