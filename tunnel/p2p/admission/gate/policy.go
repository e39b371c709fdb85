package gate

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Config is what a Gate needs; all but Proved and Policy is required. Its functions do not call the Gate.
type Config struct {
	Handshakes int                // how many may be under way
	Proved     int                // how many connections proofs may admit, of peers that the membership does not list; 0: any number
	IsMember   func(peer.ID) bool // whether the membership lists a peer
	Policy     *Policy            // for other peers; nil: the connection gater refuses them
	// Refused counts and logs a refusal; the reasons are those of package refusals. The peer is "" before the handshake,
	// and the address may be.
	Refused func(reason string, p peer.ID, from string)
}

// Ruling is what becomes of an incoming connection whose peer the membership does not list.
type Ruling uint8

const (
	LeftToGater Ruling = iota // the connection gater refuses it, with its own reason
	MayWait
	Banned
)

// Policy says how peers are admitted that the membership does not list. Make one with Secret, Statement, Controllers or Enrolling.
type Policy struct {
	judge   func(peer.ID) Ruling
	secrets []join.Secret // that admit; the gate's copy may change
	shown   func(p peer.ID, statement string) error
	most    uint16 // bytes of a statement

	stay      time.Duration // from the handshake to admission
	slots     int           // pending connections from addresses that no member has come from
	homeSlots int           // pending connections from the others; 0: they share slots
	perPrefix int           // pending connections from one prefix; 0: no limit of its own
	perPeer   int           // and of one peer; 0: no limit of its own
	protocol  protocol.ID   // the only one that they may use
	streams   int           // of one peer at a time
	circuit   bool          // each connection may have one, to a controller
	hold      time.Duration // in which streams of other protocols wait until the peer is admitted; then they end
	full      string        // why there is no slot
	late      string        // why a connection was closed that nobody vouched for in time; "": not worth counting
}

// Secret admits whoever proves one of secrets. Streams wait instead of being refused: identify runs as soon as a connection
// exists, and a node that it fails for never learns where the relay sees it, which hole punching needs.
func Secret(secrets []join.Secret, judge func(peer.ID) Ruling) *Policy {
	return &Policy{judge: judge, secrets: secrets, stay: join.Patience, slots: 384, homeSlots: 256, perPeer: 8,
		protocol: identity.JoinProtocol, streams: 16, hold: join.Patience, full: refusals.Unproved, late: refusals.NoSecret}
}

// Statement admits whoever shows a statement, of most bytes, that shown takes, nil: the peer is listed then. Others may reach a controller, as with
// Controllers, once a member would have been admitted.
func Statement(most uint16, shown func(p peer.ID, statement string) error, judge func(peer.ID) Ruling) *Policy {
	return &Policy{judge: judge, shown: shown, most: most, stay: 8 * time.Second, slots: 384, homeSlots: 256, perPeer: 8,
		protocol: identity.MemberProtocol, streams: 16, circuit: true, hold: 3 * time.Second, full: refusals.TooMany, late: refusals.NoStatement}
}

// CircuitData bounds a pending peer's circuit to a controller, in bytes in each direction: two handshakes, a request and its answer.
const CircuitData = 128 << 10

// askTime is how long such a circuit, and its connection, may be there.
const askTime = 20 * time.Second

// ControllerSlots is how many connections that may reach a controller a relay has at a time.
const ControllerSlots = 256

// Controllers lets each connection open one circuit to a controller, which may have the membership list its peer. The stay
// is long: over a slow link two handshakes and the request take some seconds. The nodes of a site are behind one address,
// and try again when they find no slot.
func Controllers(judge func(peer.ID) Ruling) *Policy {
	return &Policy{judge: judge, stay: askTime, slots: ControllerSlots, perPrefix: 32,
		protocol: proto.ProtoIDv2Hop, streams: 8, circuit: true, full: refusals.TooMany}
}

// Enrolling is a controller's own: each connection of a peer that it does not know may request writes, and nothing else. The
// relays share its slots, which take all that a relay admits: a stranger at one leaves those of the others alone.
func Enrolling() *Policy {
	return &Policy{judge: func(peer.ID) Ruling { return MayWait }, stay: 20 * time.Second, slots: 2 * ControllerSlots, perPeer: 4,
		protocol: identity.EnrollProtocol, streams: 4, full: refusals.TooMany}
}
