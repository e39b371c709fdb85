package join

import (
	"errors"

	"edgemesh/internal/secretfile"
)

var (
	// ErrPermissions means that users other than the owner may read the secrets' file.
	ErrPermissions = secretfile.ErrPermissions
	// ErrContent means that the file does not contain one or two secrets.
	ErrContent = errors.New("not a join secret")
	// ErrWrongSecret means that the relay accepts none of this node's secrets.
	ErrWrongSecret = errors.New("the relay does not accept the join secret")
)
