package join

import (
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/places"
)

const (
	// maxStrangers bounds the connections that have not proved the secret yet, and maxAtHome those more from addresses that
	// members have come from. Peers that proved it before have places of their own, maxPerPeer each, so that strangers do not
	// shut them out.
	maxStrangers = 384
	maxAtHome    = 256
	maxPerPeer   = 8
	// maxRemembered bounds the peers, and the addresses, that are remembered to have proved the secret.
	maxRemembered = 1 << 14
)

// candidate is a connection from its handshake to the proof.
type candidate struct {
	peer   peer.ID
	addr   string       // the remote multiaddr
	conn   network.Conn // nil until the swarm has it
	prefix netip.Prefix
	pool   *places.Pool[*candidate] // nil: its peer is remembered
	until  time.Time
	told   bool // its refusal is counted already
}

// Near implements places.Holder.
func (c *candidate) Near() netip.Prefix { return c.prefix }

// Until implements places.Holder.
func (c *candidate) Until() time.Time { return c.until }

// leave gives its place back.
func (c *candidate) leave() {
	if c.pool != nil {
		c.pool.Remove(c)
	}
}

// remember adds k to a bounded set.
func remember[K comparable](set map[K]struct{}, k K) {
	for other := range set {
		if _, ok := set[k]; ok || len(set) < maxRemembered {
			break
		}
		delete(set, other)
	}
	set[k] = struct{}{}
}
