// Package netcheck measures what this host's network lets through to the relays, before the node joins or beside a running
// agent. It needs no key: it goes no further with a relay than an unauthenticated peer may.
//
//	netcheck.go  the report, and all checks together
//	target.go    where a relay's multiaddrs lead
//	relay.go     round trips to one relay: TCP, UDP (STUN), WebSocket; its clock
//	family.go    IPv4 and IPv6 apart, and why there is no answer
//	portal.go    a captive portal that answers in the relays' place
//	host.go      NAT, port mapping, MTU
package netcheck

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
)

// Config says what to check.
type Config struct {
	Relays      []mesh.Relay
	Proxy       *proxy.Egress  // nil: none
	Names       *resolve.Names // nil: as an agent with another state directory
	Mark        uint32         // of sockets, so that no rule of this host sends them into the pod network; 0: none
	PortMapping bool           // request a port from routers, for a moment
	Prove       bool           // relays must show, by TCP, that they have the key which their peer ID names
	Log         *slog.Logger
}

// Report is what was found; it is what `edgemesh-agent netcheck --json` prints.
type Report struct {
	NAT         control.NAT        `json:"nat"`
	UDP         bool               `json:"udp"`  // a relay answers by UDP
	IPv4        bool               `json:"ipv4"` // this host has an address that leads off it
	IPv6        bool               `json:"ipv6"`
	Mapped      []Mapped           `json:"mapped"` // where relays see this host
	PortMapping string             `json:"portMapping"`
	Relays      []Relay            `json:"relays"`
	Proxy       string             `json:"proxy,omitempty"` // HOST:PORT, where TCP runs through one
	Uplinks     []Uplink           `json:"uplinks"`
	Clock       *Clock             `json:"clock"` // null: no relay reported the time
	Problems    []findings.Finding `json:"problems"`
}

// Mapped is where one socket of this host is seen from.
type Mapped struct {
	Family string         `json:"family"` // ipv4 or ipv6
	Local  netip.AddrPort `json:"local"`
	Seen   netip.AddrPort `json:"seen"`
	Server netip.AddrPort `json:"server"`
}

// Relay is how one relay is reached; null: the membership has no such address of it, nor does it serve WebSocket without one.
type Relay struct {
	PeerID string  `json:"peerID"`
	TCP    *Answer `json:"tcp"`
	UDP    *Answer `json:"udp"`
	WS     *Answer `json:"websocket"`
	Probes []Probe `json:"probes"`           // each address, a name's over each IP version
	Portal string  `json:"portal,omitempty"` // the host of the page that this network shows in its place
}

// Answer is the best outcome of one transport.
type Answer struct {
	Addr  string   `json:"addr"`
	RTTMs *float64 `json:"rttMs"` // null: no answer
	Error string   `json:"error,omitempty"`
}

// Uplink is an interface that leads off this host.
type Uplink struct {
	Name  string       `json:"name"`
	MTU   int          `json:"mtu"`
	Addrs []netip.Addr `json:"addresses"`
}

// Clock compares this host's with that of a relay, which is exact to half a second.
type Clock struct {
	OffsetMs int64  `json:"offsetMs"` // this host's clock is so much ahead
	Relay    string `json:"relay"`
}

const (
	// queryTimeout bounds one try.
	queryTimeout = 3 * time.Second
	// ClockTolerance is how far clocks may be apart without a word: nothing fails yet, times in logs no longer compare.
	ClockTolerance = 30 * time.Second
	// ClockFails is from when on new certificates and tokens may be refused: the API server forgives tokens a minute.
	ClockFails = time.Minute
	// smallMTU is less than which IPv6 has no path (RFC 8200, section 5).
	smallMTU = 1280
)

// Run checks everything at the same time; it takes some seconds.
func Run(ctx context.Context, c Config) Report {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := Report{Mapped: []Mapped{}, Problems: []findings.Finding{}}
	k, end := newChecker(c)
	defer end()
	var wg sync.WaitGroup
	wg.Go(func() { r.Relays, r.Clock = k.relays(ctx) })
	servers := k.servers(ctx)
	wg.Go(func() { r.Mapped = k.mapped(ctx, servers) })
	wg.Go(func() { r.NAT = k.nat(ctx, servers) })
	if c.PortMapping {
		wg.Go(func() { r.PortMapping = k.portMapping(ctx) })
	}
	r.Uplinks = k.uplinks()
	wg.Wait()
	for _, u := range r.Uplinks {
		r.IPv4 = r.IPv4 || slices.ContainsFunc(u.Addrs, netip.Addr.Is4)
		r.IPv6 = r.IPv6 || slices.ContainsFunc(u.Addrs, netip.Addr.Is6)
	}
	for _, x := range r.Relays {
		r.UDP = r.UDP || x.UDP.Answered()
		if c.Prove && !x.TCP.Answered() {
			r.Problems = append(r.Problems, findings.Brokenf("relay-unreachable", x.Remedy(), "relay %s has not shown its key by TCP", x.PeerID))
		}
	}
	r.Proxy = k.proxyUsed()
	r.Problems = append(r.Problems, problems(r)...)
	return r
}

// Relays measures the relays alone, and the clock by one of them, nil if none reported the time.
func Relays(ctx context.Context, c Config) ([]Relay, *Clock) {
	k, end := newChecker(c)
	defer end()
	return k.relays(ctx)
}

// ClockEffect is what follows from a clock that is off by more than ClockTolerance.
func ClockEffect(off time.Duration) string {
	if off.Abs() < ClockFails {
		return "times in the nodes' logs do not compare; from a minute on, certificates and tokens are refused"
	}
	return "certificates and tokens are refused"
}

// Answered reports whether there was an answer.
func (a *Answer) Answered() bool { return a != nil && a.RTTMs != nil }

// Reached reports whether any relay answers over TCP or UDP.
func (r Report) Reached() bool {
	return slices.ContainsFunc(r.Relays, func(x Relay) bool { return x.TCP.Answered() || x.UDP.Answered() || x.WS.Answered() })
}

// UDPTried reports whether any relay has a UDP address to try.
func (r Report) UDPTried() bool {
	return slices.ContainsFunc(r.Relays, func(x Relay) bool { return x.UDP != nil })
}

// problems says what follows from the report.
func problems(r Report) []findings.Finding {
	var out []findings.Finding
	switch {
	case len(r.Relays) == 0:
		out = append(out, findings.Brokenf("no-relays", "name one with --relay, or a membership file with --membership", "no relay is known, so only this host was checked"))
	case !r.Reached() && len(Portal(r.Relays)) > 0:
		out = append(out, Portal(r.Relays)...)
	case !r.Reached():
		out = append(out, findings.Brokenf("relay-unreachable", r.Relays[0].Remedy(),
			"no relay answers: this node reaches only nodes that it can dial directly"))
	case !r.UDPTried():
		out = append(out, findings.Warningf("udp", "add the relays' UDP addresses (…/udp/PORT/quic-v1)",
			"no UDP address of a relay is known, so neither UDP nor the kind of NAT was measured"))
	case !r.UDP:
		out = append(out, findings.Warningf("udp", "allow outgoing UDP to the relays' ports",
			"no relay answers by UDP: paths run over TCP, and holes are punched rarely"))
	}
	out = append(out, Versions(r.Relays)...)
	if len(r.Uplinks) == 0 {
		out = append(out, findings.Brokenf("uplink", "bring up an interface with an address and a default route", "this host has no address that leads off it"))
	}
	for _, u := range r.Uplinks {
		if u.MTU < smallMTU {
			out = append(out, findings.Warningf("mtu", "raise its MTU to 1280 or more", "%s has an MTU of %d bytes: IPv6 and LAN paths do not use it", u.Name, u.MTU))
		}
	}
	if r.Clock != nil {
		if off := time.Duration(r.Clock.OffsetMs) * time.Millisecond; off.Abs() > ClockTolerance {
			out = append(out, findings.Warningf("clock", "set the clock, for instance with chrony or systemd-timesyncd",
				"this host's clock differs from the relay's by %v: %s", off.Round(time.Second), ClockEffect(off)))
		}
	}
	return out
}
