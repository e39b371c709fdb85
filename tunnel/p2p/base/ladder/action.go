package ladder

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
	// Moved: the best path of a lane is another one now. Lost: the one before has ended, and was needed; Unused: the last path
	// has ended, and nothing needed it.
	Moved struct{ Lost, Unused bool }
	// Nudge: report to the peer, which begins the attempts, that one is worth while.
	Nudge struct{ Via PathID }
)

func (Try) action() {}

func (Fail) action() {}

func (Connect) action() {}

func (Standby) action() {}

func (Punch) action() {}

func (Probe) action() {}

func (Close) action() {}

func (Moved) action() {}

func (Nudge) action() {}

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
