package decide

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

const (
	offerVersion = 1
	secretLen    = 32
	maxOffer     = 16 << 10 // bytes of an offer on the wire
	maxReason    = 256      // bytes of a reason why a kind of path is not offered
	maxAddrs     = 16       // addresses of an offer that are looked at
)

// Offer describes a member's underlay to another member. On the stream it is
// JSON after its length in four bytes, big-endian.
type Offer struct {
	Version int       `json:"version"`
	Secret  []byte    `json:"secret"` // half of the key, 32 random bytes
	Round   int       `json:"round"`  // of the initiator: which pair VXLAN is tried on
	Addrs   []Address `json:"addrs"`  // private ones
	// Global are those in the IPv6 internet, of releases that know them.
	Global []Address `json:"global,omitempty"`
	// ProbePort is where probes are received, at the gateways.
	ProbePort uint16 `json:"probePort"`
	VXLANPort uint16 `json:"vxlanPort"`
	VXLANIPv6 bool   `json:"vxlanIPv6"` // VXLAN's outer packets are IPv6
	// NoNative and NoVXLAN say why the member takes no part; "" when it does.
	NoNative string `json:"noNative,omitempty"`
	NoVXLAN  string `json:"noVXLAN,omitempty"`
	// PodsOnly: nodes' own packets take the tunnel and are dropped on LAN paths. Both ends must say the same.
	PodsOnly bool `json:"podsOnly,omitempty"`

	trust mesh.Trust // of an own offer: what the membership says of the networks; not sent
}

// Address is one underlay address.
type Address struct {
	Addr netip.Addr `json:"addr"`
	Bits int        `json:"bits"` // of the prefix on the link
	MTU  int        `json:"mtu"`  // of the link, bytes
	MAC  MAC        `json:"mac"`  // of the link, zero where it is no Ethernet
}

// MAC is a link's address; in JSON its text.
type MAC [6]byte

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m[:]).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	if err != nil {
		return err
	}
	if len(a) != len(m) || a[0]&1 != 0 {
		return fmt.Errorf("%s is not the MAC of one host", a)
	}
	copy(m[:], a)
	return nil
}

// NewSecret returns fresh random bytes, as Config.Secret does.
func NewSecret() []byte {
	b := make([]byte, secretLen)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	return b
}

// WriteOffer sends o.
func WriteOffer(w io.Writer, o Offer) error {
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("offer: %w", err)
	}
	if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		return fmt.Errorf("send offer: %w", err)
	}
	return nil
}

// ReadOffer receives an offer and checks it. The error wraps ErrBadOffer if the peer
// broke the rules.
func ReadOffer(r io.Reader) (Offer, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return Offer{}, fmt.Errorf("receive offer: %w", err)
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxOffer {
		return Offer{}, fmt.Errorf("%w: %d bytes", ErrBadOffer, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return Offer{}, fmt.Errorf("receive offer: %w", err)
	}
	return parseOffer(b)
}

func parseOffer(b []byte) (Offer, error) {
	var o Offer
	if err := json.Unmarshal(b, &o); err != nil {
		return Offer{}, fmt.Errorf("%w: %w", ErrBadOffer, err)
	}
	switch {
	case o.Version != offerVersion:
		return Offer{}, fmt.Errorf("%w: version %d, this is version %d", ErrBadOffer, o.Version, offerVersion)
	case len(o.Secret) != secretLen:
		return Offer{}, fmt.Errorf("%w: a secret of %d bytes", ErrBadOffer, len(o.Secret))
	case o.Round < 0 || len(o.NoNative) > maxReason || len(o.NoVXLAN) > maxReason:
		return Offer{}, fmt.Errorf("%w: round %d, or a reason that is too long", ErrBadOffer, o.Round)
	case (o.NoNative == "" || o.NoVXLAN == "") && o.ProbePort == 0:
		return Offer{}, fmt.Errorf("%w: no port for probes", ErrBadOffer)
	}
	o.NoNative, o.NoVXLAN = wording.Foreign(o.NoNative, maxReason), wording.Foreign(o.NoVXLAN, maxReason)
	o.Addrs, o.Global = o.Addrs[:min(len(o.Addrs), maxAddrs)], o.Global[:min(len(o.Global), maxAddrs)]
	return o, errors.Join(checkAddrs(o.Addrs, mesh.PrivateUnderlay), checkAddrs(o.Global, mesh.GlobalUnderlay))
}

func checkAddrs(all []Address, kind func(netip.Addr) bool) error {
	for _, a := range all {
		if !kind(a.Addr) || a.Addr.Zone() != "" || a.Bits < 1 || a.Bits > a.Addr.BitLen() || a.MTU < 0 {
			return fmt.Errorf("%w: address %s/%d, MTU %d", ErrBadOffer, a.Addr, a.Bits, a.MTU)
		}
	}
	return nil
}
