package p2p

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"

	ma "github.com/multiformats/go-multiaddr"
)

const (
	// maxOffer bounds the addresses in an offer, and maxOfferBytes its length.
	maxOffer      = 24
	maxOfferBytes = 4096
)

// offer is what each side tells: where it may be dialed. On the wire it is one
// line of JSON.
type offer struct {
	Addrs []string `json:"addrs"`         // multiaddrs, most likely first
	NAT   string   `json:"nat,omitempty"` // what the sender knows of its NAT
	Want  []string `json:"want"`          // transports that are missing: "tcp", "quic"
	Turn  int      `json:"turn"`          // who dials first; the coordinator's word counts
}

// Who dials first changes from attempt to attempt: a router that answers an
// unsolicited packet, or remembers it, spoils the mapping of the host behind it,
// and then its own host has to be the first.
const (
	turnCoordinator = iota
	turnAnswerer
	turns
)

func writeOffer(w io.Writer, o offer) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// readOffer reads one line; what it cannot dial it leaves out.
func readOffer(r io.Reader) (offer, []endpoint, error) {
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
	if len(o.NAT) > 64 {
		o.NAT = o.NAT[:64]
	}
	var eps []endpoint
	for _, s := range o.Addrs {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			continue
		}
		if e, ok := parseEndpoint(a); ok && e.valid() && len(eps) < maxOffer && !slices.Contains(eps, e) {
			eps = append(eps, e)
		}
	}
	return o, eps, nil
}

// localOffer tells where this node may be dialed: where relays see it, its own
// addresses, and for a socket no relay sees, the guess that NAT keeps its port.
func (n *Node) localOffer(want []string) (offer, []endpoint) {
	seen, symmetric := n.relays.observed()
	local := n.localEndpoints()
	eps := slices.Clone(seen)
	for _, s := range seen {
		for _, l := range n.ListenAddrs() {
			e, ok := parseEndpoint(l)
			if !ok || e.udp == s.udp || e.addr.Addr().Is4() != s.addr.Addr().Is4() ||
				slices.ContainsFunc(seen, func(x endpoint) bool { return x.udp == e.udp }) {
				continue
			}
			eps = append(eps, endpoint{udp: e.udp, addr: netip.AddrPortFrom(s.addr.Addr(), e.addr.Port())})
		}
	}
	o := offer{Want: want, NAT: natKind(seen, local, symmetric)}
	var out []endpoint
	for _, e := range append(eps, local...) {
		if !slices.Contains(out, e) && len(out) < maxOffer {
			out = append(out, e)
			o.Addrs = append(o.Addrs, e.multiaddr().String())
		}
	}
	return o, out
}

// natKind says in a few words what stands between this node and its relays.
func natKind(seen, local []endpoint, symmetric bool) string {
	switch {
	case len(seen) == 0:
		return "unknown (no relay sees this node)"
	case symmetric:
		return "symmetric NAT"
	}
	kept := true
	for _, s := range seen {
		if slices.Contains(local, s) {
			continue
		}
		kept = kept && slices.ContainsFunc(local, func(l endpoint) bool {
			return l.udp == s.udp && l.addr.Port() == s.addr.Port()
		})
	}
	switch {
	case !slices.ContainsFunc(seen, func(s endpoint) bool { return !slices.Contains(local, s) }):
		return "no NAT"
	case kept:
		return "NAT that keeps ports"
	default:
		return "NAT that changes ports"
	}
}
