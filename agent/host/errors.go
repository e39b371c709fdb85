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
	// ErrTableTaken means that routes of others were in one of our routing tables
	// before us.
	ErrTableTaken = errors.New("another program uses this routing table; move its routes to another number")
	// ErrNFTTaken means that an nftables table of another program has one of our names.
	ErrNFTTaken = errors.New("another program's nftables table has this name; rename or delete it (nft delete table)")
	// ErrNotCounted means that the kernel does not count packets per peer.
	ErrNotCounted = errors.New("the kernel does not count packets per element of a set (Linux 5.12)")
	// ErrNoBlock means that a plan has no pod block of this node.
	ErrNoBlock = errors.New("the plan has no pod block of this node")
)
