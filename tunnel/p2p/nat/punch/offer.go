package punch

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/portguess"
	"edgemesh/tunnel/p2p/nat/sense"
)

const (
	// maxOffer bounds the addresses in an offer, and maxOfferBytes its length.
	maxOffer      = 24
	maxOfferBytes = 4096
)

// offer is what each side sends: where it may be dialed. On the wire it is one line of
// JSON.
type offer struct {
	Addrs []string `json:"addrs"` // multiaddrs, most likely first
	// Guess has UDP addresses where the sender's next mappings may be, of which
	// at most one is right: nobody listens there yet.
	Guess []string `json:"guess,omitempty"`
	NAT   string   `json:"nat,omitempty"` // the sender's, by ladder.NAT's names
	// NAT64 says that the sender has no IPv4 and reaches IPv4 hosts.
	NAT64 bool `json:"nat64,omitempty"`
	// NAT66 says that relays see the sender at an IPv6 address that is not its own.
	NAT66 bool     `json:"nat66,omitempty"`
	Want  []string `json:"want"` // transports that are missing: "tcp", "quic"
	Turn  int      `json:"turn"` // who dials first; the coordinator decides
	// Ports says that the sender takes part in port guessing, and which ports of its own
	// there are to guess; nil: it does not.
	Ports *portsOffer `json:"ports,omitempty"`
	// NoPorts is why there are none (guess.go); "" from former versions.
	NoPorts string `json:"noPorts,omitempty"`
}

// Who dials first changes from attempt to attempt. A router that answers an unsolicited
// packet, or remembers it, spoils the mapping of the host behind it; then that host has to
// be the first. Where both routers do that, the packets have to cross between them.
const (
	turnCoordinator = iota
	turnAnswerer
	turnTogether
	turns
)

// crossing is the round-trip time, over the path the attempt is agreed on, from which
// packets that are sent at the same time are likely to cross on their way.
const crossing = 8 * time.Millisecond

// turnOf chooses the turn of an attempt. Two routers that both spoil mappings need packets
// that cross in the first attempt, since a mapping stays spoilt for half a minute. Over
// short distances packets would not cross. A node without a router in front is simply
// dialed: SYNs that cross do harm (serverDelay).
func turnOf(attempt int, rtt time.Duration, mine ladder.NAT) int {
	if rtt >= crossing && mine != ladder.NATNone {
		return (attempt + turnTogether) % turns
	}
	return attempt % turns
}

func writeOffer(w io.Writer, o offer) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// readOffer reads one line; what it cannot dial it leaves out.
func readOffer(r io.Reader) (offer, []endpoint.Endpoint, error) {
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, one); err != nil {
			return offer{}, nil, err
		}
		if one[0] == '\n' {
			break
		}
		if line = append(line, one[0]); len(line) > maxOfferBytes {
			return offer{}, nil, errors.New("offer is too long")
		}
	}
	var o offer
	if err := json.Unmarshal(line, &o); err != nil {
		return offer{}, nil, err
	}
	return o, endpoints(o.Addrs, maxOffer), nil
}

// endpoints reads addresses, at most limit of them.
func endpoints(addrs []string, limit int) []endpoint.Endpoint {
	var eps []endpoint.Endpoint
	for _, s := range addrs {
		if len(eps) == limit {
			break
		}
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			continue
		}
		if e, ok := endpoint.Parse(a); ok && e.Valid() && !slices.Contains(eps, e) {
			eps = append(eps, e)
		}
	}
	return eps
}

// guessed returns the predicted endpoints of an offer. They are ports of a host that is
// offered anyway: a peer cannot direct this node's packets elsewhere.
func (o offer) guessed(eps []endpoint.Endpoint) []endpoint.Endpoint {
	return slices.DeleteFunc(endpoints(o.Guess, sense.MaxPredictions), func(g endpoint.Endpoint) bool {
		return !g.UDP || !slices.ContainsFunc(eps, func(e endpoint.Endpoint) bool { return e.Addr.Addr() == g.Addr.Addr() })
	})
}

// portsOffer is what a node lets be guessed: on the wire part of an offer.
type portsOffer struct {
	Addr            string `json:"addr"` // multiaddr, one of those offered
	portguess.Range        // one port, or those of a NAT that maps at random
}

// Why an offer has no ports, on the wire.
const (
	notAllowed = "never" // punch.guess is never
	isBusy     = "busy"  // ports are being guessed with another peer
	hasRested  = "rests" // the last attempt was a moment ago
	notKnown   = "unknown"
)
