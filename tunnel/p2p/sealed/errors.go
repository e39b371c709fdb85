package sealed

import "errors"

var (
	// ErrCipher means that the session's cipher suite is none of TLS 1.3's.
	ErrCipher = errors.New("cipher suite is not known")
	// ErrForged means that a packet does not come from the holder of the key.
	ErrForged = errors.New("packet is not authentic")
	// ErrReplayed means that a packet came before, or is too old to tell.
	ErrReplayed = errors.New("packet was there before")
)
