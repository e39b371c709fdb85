package host

import "errors"

var (
	// ErrNoTUN means that the TUN does not exist yet. Everything that does not
	// need it was set: pods of this node reach each other, and the blackhole
	// routes hold the rest of the cluster's ranges.
	ErrNoTUN = errors.New("the TUN " + TUNName + " does not exist; the agent has to open it first")
	// ErrNoIPTables means that no usable iptables was found.
	ErrNoIPTables = errors.New("iptables is missing (apt install iptables)")
	// ErrNameTaken means that an interface of another kind has one of our names.
	ErrNameTaken = errors.New("an interface of another kind has this name; rename or delete it (ip link delete)")
	// ErrNoBlock means that a plan has no pod block of this node.
	ErrNoBlock = errors.New("the plan has no pod block of this node")
)
