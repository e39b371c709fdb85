package ladder

// Event is something that happened to a peer. The doc comments say what follows.
type Event interface{ apply(m *Machine) }

type (
	// Open: a stream is to be opened. Try follows, once there is a path, or Fail.
	Open struct {
		ID   OpenID
		Lane Lane
	}
	// OpenFailed: it could not be opened on Path, which is suspected. Another Try follows, or Fail.
	OpenFailed struct {
		ID   OpenID
		Path PathID
	}
	// Opened: it is open. The peer is in demand.
	Opened struct{ ID OpenID }
	// Abandon: the caller no longer wants it, which says nothing of the path.
	Abandon struct{ ID OpenID }
	// Use: a ping was sent. The peer is in demand.
	Use struct{}
	// Disconnect: the owner of the streams no longer needs the peer. Its paths are closed, unless it was used otherwise a moment
	// ago.
	Disconnect struct{}
	// Refuse: the peer is no longer a member, or is in quarantine. Everything is closed, and what comes later as soon as it
	// comes.
	Refuse struct{}
	// Admit takes Refuse back.
	Admit struct{}

	// Up: there is a connection, whoever dialed it.
	Up struct {
		Path PathID
		Link Link
	}
	// Ready: the path can be probed from now on, and is.
	Ready struct{ Path PathID }
	// Down: the connection has ended.
	Down struct{ Path PathID }
	// Ask: a stream is being opened on the path. An idle path may have died unnoticed: it is probed now.
	Ask struct{ Path PathID }
	// Suspect: something failed on the path. Others are used until it answers.
	Suspect struct{ Path PathID }
	// Broken: the path cannot be used: the peer found it dead, refuses to be probed on it, or large packets vanish.
	Broken struct {
		Path PathID
		Why  string
	}
	// Answer: a probe came back.
	Answer struct {
		Path   PathID
		Last   bool // it answers the last request, not one before
		Direct bool // an end owns the address at which it is seen
	}

	// Connected: a round of connecting has ended. Each path that it made was reported by Up.
	Connected struct{}
	// StandbyDone: an attempt to get a relayed path has ended.
	StandbyDone struct{}
	// Punched: an attempt to get direct paths has ended. Later: without what is most likely to succeed, for which another
	// peer's attempt has to end first. It does not count as one that failed.
	Punched struct{ Later bool }
	// NATs: what is known of the NATs on both sides.
	NATs struct{ Mine, Theirs NAT }
	// NetChanged: addresses of this node, or where relays see it, have changed. All paths are probed, what failed before is
	// tried again.
	NetChanged struct{}
	// Nudged: the peer says that its addresses have changed.
	Nudged struct{}

	// Wake: the time of Next has come, or a quiet path carries data again. Silence is judged here, so every path must have a
	// sample. Kept: one of the two is the other's relay, so that the peer stays connected although it is not used.
	Wake struct {
		Samples []Sample
		Kept    bool
	}
)

// Sample is what is known of a path without a probe.
type Sample struct {
	Path    PathID
	Moved   uint64 // bytes sent and received by streams since Up
	Heard   Time   // how long ago something last arrived from the peer
	Carrier Time   // how long ago the kernel heard the next hop; Never if it cannot tell
	Streams int    // open now
	Order   int    // of a relayed path: which relay to prefer, the lowest
	Poor    bool   // of a relayed path: the relay could be reached over a better transport
}

// Action is something to be done. None of them is waited for; the outcome arrives as an event.
type Action interface{ action() }

type (
	// Try: open the stream on Path. A try on another path is to be cancelled: this one is better, or was suspected less.
	Try struct {
		Open OpenID
		Path PathID
	}
	// Fail: the stream cannot be opened: a round of connecting has made no path for it, all paths failed, or the peer is refused.
	Fail struct{ Open OpenID }
	// Connect: dial through relays and at the addresses where the peer was last. Then Connected.
	Connect struct{}
	// Standby: get a relayed path beside the direct ones. Then StandbyDone.
	Standby struct{}
	// Punch: make direct paths over the missing transports, coordinated with the peer over Via. Then Punched.
	Punch struct {
		Via     PathID
		Want    []Transport
		Attempt int // counts from 0 after every change for the better
	}
	// Probe: send a request. Then Answer, perhaps.
	Probe struct{ Path PathID }
	// Close: end the connection and what runs on it. Over, unless it is zero, is the path on which to report that to the
	// peer, which may not notice by itself.
	Close struct {
		Path PathID
		Why  Reason
		Text string // for an operator
		Over PathID
	}
	// Moved: the best path of a lane is another one now. Lost: the one before has ended; Unused: when nothing had used it lately.
	Moved struct{ Lost, Unused bool }
	// Nudge: report to the peer, which begins the attempts, that one is worth while.
	Nudge struct{ Via PathID }
)

func (Try) action()     {}
func (Fail) action()    {}
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
	// Spare: there is a better one of the same kind.
	Spare
	// Unused: the peer is disconnected.
	Unused
	// Refused: the peer is refused.
	Refused
)
