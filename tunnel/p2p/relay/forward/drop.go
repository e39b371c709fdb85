package forward

// Reason says why packets were dropped.
type Reason uint8

// The reasons; String gives the name used as a metric label.
const (
	accepted Reason = iota
	// Short: the header or the sealed packet is cut short.
	Short
	// UnknownNumber: no channel has the number.
	UnknownNumber
	// ForeignSource: they do not come from where the channel's owner is.
	ForeignSource
	// NoLeave: the member that the channel leads to has none to its owner.
	NoLeave
	// NotSealed: something else than sealed packets.
	NotSealed
	// Late: they waited too long for the member's share, or for room in the socket.
	Late
	// Unsent: the system refused them.
	Unsent
	numReasons
)

// String is the reason's name as a metric label.
func (r Reason) String() string {
	return [numReasons]string{"", "short", "unknown_number", "foreign_source", "no_leave", "not_sealed", "late", "unsent"}[r]
}

// Reasons lists all of them.
func Reasons() (out []Reason) {
	for r := accepted + 1; r < numReasons; r++ {
		out = append(out, r)
	}
	return out
}
