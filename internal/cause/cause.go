// Package cause names, in a closed list, why there is no path to a peer or a relay. An operator sees these words first; what libraries say, which has
// more and changes with them, stands beside them in the details. No other package can make one.
package cause

// Cause is one of the list. The zero one says that none is known.
type Cause struct{ text string }

//nolint:gochecknoglobals // constants
var (
	NoRelay     = Cause{"no relay is connected"}
	NoAnswer    = Cause{"no answer"}
	Absent      = Cause{"no relay has it"}
	NoCircuit   = Cause{"a relay gives no circuit to it"}
	Quarantined = Cause{"it is in quarantine"}
	NotSent     = Cause{"this host does not send it"}
	Refused     = Cause{"connection refused"}
	RefusesUs   = Cause{"it refuses this node"}
	Inside      = Cause{"it refuses connections from addresses of the pod network"}
	NoRoute     = Cause{"this host has no route to it"}
	NoName      = Cause{"no name server says its address"}
	Proxy       = Cause{"the HTTP proxy lets nothing through"}
	OtherKey    = Cause{"a host with another key answers"}
	Full        = Cause{"it has no slot left"}
	NoRelayHere = Cause{"it is not a relay"}
	Lost        = Cause{"the connection ended"}
	Waiting     = Cause{"no answer yet"}
	Other       = Cause{"no way to it opens"}

	all = []Cause{NoRelay, NoAnswer, Absent, NoCircuit, Quarantined, NotSent, Refused, RefusesUs, Inside, NoRoute, NoName, Proxy, OtherKey, Full, NoRelayHere, Lost, Waiting, Other}
)

func (c Cause) String() string { return c.text }

// MarshalText implements encoding.TextMarshaler.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.text), nil }

// UnmarshalText implements encoding.TextUnmarshaler. What is not of the list is Other: another release's.
func (c *Cause) UnmarshalText(b []byte) error {
	*c = Cause{}
	for _, known := range all {
		if string(b) == known.text {
			*c = known
		}
	}
	if len(b) > 0 && *c == (Cause{}) {
		*c = Other
	}
	return nil
}
