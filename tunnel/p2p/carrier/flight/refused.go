package flight

// Reason is why something a peer sent is not taken.
type Reason int

// The reasons.
const (
	Malformed    Reason = iota // no frame, or more of them than any sender puts into a packet
	Repeated                   // a packet that has arrived, or is older than the window
	Ahead                      // an offset further ahead than a sender may be
	NoMemory                   // pieces behind holes fill their memory
	Broken                     // a piece of a bucket that waited too long for a hole to be filled
	NeverSent                  // an ACK of a packet that was not sent
	TooManyBytes               // an ACK of more bytes than were sent
	WrongTime                  // an ACK whose times are impossible
	reasons
)

// String is the reason's name in metrics.
func (r Reason) String() string {
	return [...]string{"malformed", "repeated", "ahead", "no-memory", "broken", "never-sent", "too-many-bytes", "wrong-time"}[r]
}

// Refused counts what is not taken, by reason.
type Refused [reasons]uint64
