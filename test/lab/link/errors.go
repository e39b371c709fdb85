package link

import "errors"

var (
	// ErrConfig means that the description of a link makes no sense.
	ErrConfig = errors.New("bad link")
	// ErrControl means that a running emulator refused a request.
	ErrControl = errors.New("link control")
)
