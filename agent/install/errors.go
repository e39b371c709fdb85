package install

import "errors"

var (
	// ErrNotInstalled means that there is no record of an installation.
	ErrNotInstalled = errors.New("not installed by `edgemesh-agent install`")
	// ErrOtherForm means that the agent is installed in another form.
	ErrOtherForm = errors.New("installed in another form")
	// ErrUnfit means that the agent cannot run in this form with its configuration.
	ErrUnfit = errors.New("not possible as a static pod")
	// ErrBadOption means that an option has an invalid value.
	ErrBadOption = errors.New("bad option")
)
