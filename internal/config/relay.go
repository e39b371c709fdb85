package config

import (
	"fmt"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/membership/mesh"
)

// Relay is the `relay` key of the agent's file: whether this node is a relay for
// the others, and how.
type Relay struct {
	Enabled bool
	// Announce are the addresses to publish, without /p2p/…; empty = those of the
	// interfaces.
	Announce []ma.Multiaddr
	Limits   RelayLimits
}

// relayDocument is the key as written.
type relayDocument struct {
	Enabled  bool                `json:"enabled"`
	Announce []string            `json:"announce"`
	Limits   RelayLimitsDocument `json:"limits"`
}

func (d relayDocument) check(bad *mesh.Invalid, listen []ma.Multiaddr) Relay {
	r := Relay{Enabled: d.Enabled, Announce: Announced(bad, "relay.announce", d.Announce, listen),
		Limits: d.Limits.Check(bad, "relay.limits")}
	switch {
	case !r.Enabled:
		return Relay{}
	case len(listen) == 0 && len(d.Announce) > 0:
		bad.Addf("relay.announce", "needs listen: a port that is forwarded to this node must be fixed")
	}
	return r
}

// RelayLimits bound what members may use of a relay. Other peers may use nothing.
type RelayLimits struct {
	MaxReservations      int // members waiting to be reached through this relay
	MaxReservationsPerIP int // of them from one IPv4 address or IPv6 /56: a whole site may share one
	MaxCircuits          int // relayed connections at the same time
	MaxCircuitsPerPeer   int // of them with one member at either end
	BufferSize           int // bytes per direction of a circuit
	Bandwidth            int // Mbit/s of all circuits together, divided fairly among senders; 0 = not divided
}

// RelayLimitsDocument is the `limits` key of a relay as written.
type RelayLimitsDocument struct {
	MaxReservations      *int `json:"maxReservations"`
	MaxReservationsPerIP *int `json:"maxReservationsPerIP"`
	MaxCircuits          *int `json:"maxCircuits"`
	MaxCircuitsPerPeer   *int `json:"maxCircuitsPerPeer"`
	BufferSize           *int `json:"bufferSize"`
	Bandwidth            *int `json:"bandwidth"`
}

// Defaults. A buffer holds one message of a multiplexer's session, the most that one
// read returns; a smaller one halves the throughput (2 KiB: 1.0 instead of 2.2 Gbit/s
// over TCP). 8192 circuits with two buffers each are 256 MiB at worst.
const (
	defaultReservations    = 16384
	defaultCircuits        = 8192
	defaultCircuitsPerPeer = 1024
	defaultBuffer          = 16 << 10
	minBuffer, maxBuffer   = 2 << 10, 1 << 20
	maxCount               = 1 << 20
	maxBandwidth           = 1_000_000
)

// RelayLimitsHelp describes the key.
const RelayLimitsHelp = `limits (all optional):
  maxReservations       members waiting to be reached here (default 16384)
  maxReservationsPerIP  of them from one IPv4 address or IPv6 /56 (default: maxReservations)
  maxCircuits           relayed connections at the same time (default 8192)
  maxCircuitsPerPeer    of them with one member at either end (default 1024)
  bufferSize            bytes per direction of a circuit (default 16384)
  bandwidth             Mbit/s that the link to the Internet carries: once they are in use, members share
                        them fairly, whatever number of circuits each has (default: not divided)`

// Check fills in the defaults; key is where d is written.
func (d RelayLimitsDocument) Check(bad *mesh.Invalid, key string) RelayLimits {
	field := func(name string, v *int, byDefault, low, high int) int {
		if v == nil {
			return byDefault
		}
		if *v < low || *v > high {
			bad.Addf(key+"."+name, "%d is not between %d and %d", *v, low, high)
		}
		return *v
	}
	l := RelayLimits{
		MaxReservations: field("maxReservations", d.MaxReservations, defaultReservations, 1, maxCount),
		MaxCircuits:     field("maxCircuits", d.MaxCircuits, defaultCircuits, 1, maxCount),
		BufferSize:      field("bufferSize", d.BufferSize, defaultBuffer, minBuffer, maxBuffer),
		Bandwidth:       field("bandwidth", d.Bandwidth, 0, 1, maxBandwidth),
	}
	l.MaxReservationsPerIP = field("maxReservationsPerIP", d.MaxReservationsPerIP, l.MaxReservations, 1, maxCount)
	l.MaxCircuitsPerPeer = field("maxCircuitsPerPeer", d.MaxCircuitsPerPeer, min(defaultCircuitsPerPeer, l.MaxCircuits), 1, maxCount)
	if l.MaxCircuitsPerPeer > l.MaxCircuits {
		bad.Addf(key+".maxCircuitsPerPeer", "%d is more than maxCircuits (%d)", l.MaxCircuitsPerPeer, l.MaxCircuits)
	}
	return l
}

// Announced checks the addresses an operator publishes for a relay. One without a
// transport stands for that host at every port listened on.
func Announced(bad *mesh.Invalid, key string, list []string, listen []ma.Multiaddr) []ma.Multiaddr {
	var out []ma.Multiaddr
	for i, text := range list {
		field := fmt.Sprintf("%s[%d]", key, i)
		m, err := ma.NewMultiaddr(text)
		if err != nil {
			bad.Addf(field, "%q is not a multiaddr like /ip4/5.5.5.5 or /dns4/relay.example.org/tcp/%d: %v", text, RelayPort, err)
			continue
		}
		if _, id := peer.SplitAddr(m); id != "" {
			bad.Addf(field, "%q: leave out /p2p/…, it is added automatically", text)
			continue
		}
		host := ma.Cast(m[0].Bytes())
		switch m[0].Protocol().Code {
		case ma.P_IP4, ma.P_IP6, ma.P_DNS, ma.P_DNS4, ma.P_DNS6:
		default:
			bad.Addf(field, "%q does not start with /ip4, /ip6, /dns, /dns4 or /dns6", text)
			continue
		}
		switch {
		case len(m) == 1:
			for _, l := range listen {
				out = append(out, host.Encapsulate(l[1:]))
			}
		case transportOf(m[1:]):
			out = append(out, m)
		default:
			bad.Addf(field, "%q does not end in /tcp/PORT, /udp/PORT/quic-v1, /tcp/PORT/ws or /tcp/PORT/tls/ws", text)
		}
	}
	return ma.Unique(out)
}

// transportOf reports whether m is a transport, with a port, that can reach a relay.
func transportOf(m ma.Multiaddr) bool {
	if len(m) == 0 || m[0].Value() == "0" {
		return false
	}
	var rest string
	if len(m) > 1 {
		rest = m[1:].String()
	}
	switch m[0].Protocol().Code {
	case ma.P_TCP:
		return rest == "" || rest == "/ws" || rest == "/tls/ws" || rest == "/wss"
	case ma.P_UDP:
		return rest == "/quic-v1"
	}
	return false
}
