package ladder

// Event is something that happened to a peer. The doc comments say what the
// machine makes of it.
type Event interface{ apply(m *Machine) }

type (
	// Want: somebody asks for a path and there is none. A round of connecting
	// begins, unless one is under way.
	Want struct{}
	// Use: somebody opened a stream or sent a ping. The peer is in demand.
	Use struct{}
	// LetGo: the owner of the streams has no more use for the peer. Its paths are
	// closed, unless somebody else used it a moment ago.
	LetGo struct{}
	// Refuse: the peer is no member any more, or is shunned. Everything is closed,
	// and closed at once if it comes again.
	Refuse struct{}
	// Admit takes Refuse back.
	Admit struct{}

	// Up: a connection came, whoever dialed it.
	Up struct {
		Path PathID
		Link Link
	}
	// Ready: the path can be probed from now on, and is.
	Ready struct{ Path PathID }
	// Down: the connection has ended.
	Down struct{ Path PathID }
	// Ask: a stream is being opened on the path. An idle path may have died unseen:
	// it is probed at once.
	Ask struct{ Path PathID }
	// Doubt: something failed on the path. Others are used until it answers.
	Doubt struct{ Path PathID }
	// Broken: the path cannot be used: the peer found it dead, or refuses to be
	// probed on it.
	Broken struct {
		Path PathID
		Why  string
	}
	// Answer: a probe came back.
	Answer struct {
		Path   PathID
		Last   bool // it answers the last request, not one before
		Direct bool // both ends own the addresses they are seen at
	}

	// Connected: a round of connecting has ended. What it made came as Up.
	Connected struct{}
	// StandbyDone: an attempt to get a relayed path has ended.
	StandbyDone struct{}
	// Punched: an attempt to get direct paths has ended.
	Punched struct{}
	// NATs: what is known of the NATs on both sides.
	NATs struct{ Mine, Theirs NAT }
	// NetChanged: addresses of this node, or where relays see it, have changed. What
	// is there is probed, what failed before is tried again.
	NetChanged struct{}
	// Nudged: the peer says that its addresses have changed.
	Nudged struct{}

	// Wake: the time Next gave has come, or a quiet path carries data again.
	// Silence is judged here, so every path must have a sample. Kept: one of the two
	// is the other's relay, so that the peer stays connected although nobody uses it.
	Wake struct {
		Samples []Sample
		Kept    bool
	}
)

// Sample is what is known of a path without asking the peer.
type Sample struct {
	Path    PathID
	Moved   uint64 // bytes sent and received by streams since Up
	Heard   Time   // how long ago something last came in from the peer
	Carrier Time   // how long ago the kernel heard the next hop; Never if it cannot tell
	Streams int    // open now
	Order   int    // of a relayed path: which relay to prefer, the lowest
	Poor    bool   // of a relayed path: the relay could be reached in a better way
}

// Action is something to be done. None of them is waited for; what comes of it is
// told as an event.
type Action interface{ action() }

type (
	// Connect: dial through relays and where the peer was last. Then Connected.
	Connect struct{}
	// Standby: get a relayed path beside the direct ones. Then StandbyDone.
	Standby struct{}
	// Punch: make direct paths over the missing transports, by talking to the peer
	// over Via. Then Punched.
	Punch struct {
		Via     PathID
		Want    []Transport
		Attempt int // counts from 0 after every change for the better
	}
	// Probe: send a request. Then Answer, perhaps.
	Probe struct{ Path PathID }
	// Close: end the connection and what runs on it. Over, unless it is zero, is the path to
	// tell the peer on, which may not notice by itself.
	Close struct {
		Path PathID
		Why  Reason
		Text string // for an operator
		Over PathID
	}
	// Moved: the best path of a lane is another one now. Lost: the one before is
	// dead.
	Moved struct{ Lost bool }
	// Nudge: tell the peer, who begins the attempts, that it is worth trying.
	Nudge struct{ Via PathID }
)

func (Connect) action() {}
func (Standby) action() {}
func (Punch) action()   {}
func (Probe) action()   {}
func (Close) action()   {}
func (Moved) action()   {}
func (Nudge) action()   {}

// Reason is why a path is closed.
type Reason int

const (
	// Silent: nothing was heard for too long.
	Silent Reason = iota + 1
	// Failed: as Broken said.
	Failed
	// Spare: there is a better one of the same sort.
	Spare
	// Unused: the peer is let go.
	Unused
	// Refused: the peer is none of ours.
	Refused
)
