package herd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/identity"
)

// Relay is where a herd goes: one port for TCP and UDP.
type Relay struct {
	ID peer.ID
	At netip.AddrPort
}

// errWaits is why a member has no reservation that did not try yet, or is trying for the first time.
var errWaits = errors.New("it waits for its turn, or for an answer")

// Herd is a number of members.
type Herd struct {
	All      []*Member
	ctx      context.Context //nolint:containedctx // the herd's lifetime
	cancel   context.CancelFunc
	tasks    sync.WaitGroup
	reserved atomic.Int64
	Attempts atomic.Int64 // to connect
	Refused  atomic.Int64 // reservations
	TCPFirst bool         // QUIC is left out: nobody needs it

	mu      sync.Mutex // a leaf: guards what follows
	sockets map[udpPlace]*quic.Transport
}

// udpPlace is a UDP socket. A site has a few, which its members share: a process may open 20,000 files here.
type udpPlace struct {
	site netip.Addr
	n    int
}

const socketsPerSite = 4

// socket returns a UDP socket, which stays until the herd ends.
func (h *Herd) socket(at udpPlace) (*quic.Transport, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.sockets[at]; t != nil {
		return t, nil
	}
	u, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.site, 0)))
	if err != nil {
		return nil, err
	}
	h.sockets[at] = &quic.Transport{Conn: u}
	return h.sockets[at], nil
}

// New makes n members behind as many addresses of 127.0.0.0/8 as there are sites. They have done nothing yet.
func New(n, sites int) (*Herd, error) {
	h := &Herd{sockets: make(map[udpPlace]*quic.Transport), TCPFirst: choice.TCPFirst(n, 1)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	for i := range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			return nil, err
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			return nil, err
		}
		tls, err := identity.NewTLS(libp2ptls.ID, key, []upgrader.StreamMuxer{{ID: mux.ID, Muxer: identity.Muxer()}})
		if err != nil {
			return nil, err
		}
		timeless, err := identity.Timeless()
		if err != nil {
			return nil, err
		}
		quicID, err := libp2ptls.NewIdentity(key, timeless)
		if err != nil {
			return nil, err
		}
		site := i % sites
		m := &Member{ID: id, herd: h, tls: tls, quicID: quicID,
			at: udpPlace{netip.AddrFrom4([4]byte{127, 1 + byte(site>>16), byte(site >> 8), byte(site)}), i / sites % socketsPerSite}}
		if m.who, err = m.identify(key); err != nil {
			return nil, err
		}
		h.All = append(h.All, m)
	}
	return h, nil
}

// Go sends the members to a relay. So many at a time connect the first time, until they hold a reservation.
func (h *Herd) Go(r Relay, atATime int) {
	places := make(chan struct{}, atATime)
	for _, m := range h.All {
		m.arrived = sync.OnceFunc(func() { <-places })
		h.tasks.Go(func() {
			select {
			case places <- struct{}{}:
				m.run(h.ctx, r)
			case <-h.ctx.Done():
			}
		})
	}
}

// Reserved is how many members hold a reservation now.
func (h *Herd) Reserved() int { return int(h.reserved.Load()) }

// Complete is how many members have both connections.
func (h *Herd) Complete() (n int) {
	for _, m := range h.All {
		if m.tcp() != nil && m.quic() != nil {
			n++
		}
	}
	return n
}

// Missing is why one of those without a reservation has none; nil where all have one.
func (h *Herd) Missing() error {
	for i, m := range h.All {
		if m.ReservedAt().IsZero() {
			return fmt.Errorf("member %d: %w", i, cmp.Or(m.Err(), errWaits))
		}
	}
	return nil
}

// Back is how long after since each member made the reservation that it holds, shortest first; those that hold none are
// left out.
func (h *Herd) Back(since time.Time) []time.Duration {
	var out []time.Duration
	for _, m := range h.All {
		if at := m.ReservedAt(); at.After(since) {
			out = append(out, at.Sub(since))
		}
	}
	slices.Sort(out)
	return out
}

// Close has all members leave.
func (h *Herd) Close() {
	h.cancel()
	h.tasks.Wait()
	for _, t := range h.sockets {
		_ = t.Close()
		_ = t.Conn.Close()
	}
}
