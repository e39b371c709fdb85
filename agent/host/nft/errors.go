package nft

import "errors"

var (
	// ErrTaken means that an nftables table of another program has one of our names.
	ErrTaken = errors.New("another program's nftables table has this name; rename or delete it (nft delete table)")
	// ErrNotCounted means that the kernel does not count packets per peer.
	ErrNotCounted = errors.New("the kernel does not count packets per element of a set (Linux 5.12 and later do)")
)
