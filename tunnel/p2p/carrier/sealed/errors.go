package sealed

import "errors"

var (
	// ErrCipher means that the session's cipher suite does not belong to TLS 1.3.
	ErrCipher = errors.New("unknown cipher suite")
	// ErrForged means that a packet does not come from the holder of the key.
	ErrForged = errors.New("packet is not authentic")
)
