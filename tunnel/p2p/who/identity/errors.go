package identity

import "errors"

var (
	// ErrPermissions means that users other than the owner may use the key file.
	ErrPermissions = errors.New("permissions are too open, 0600 required")
	// ErrCorrupt means that the key file is torn or is not an Ed25519 key.
	ErrCorrupt = errors.New("not a valid key")
)
