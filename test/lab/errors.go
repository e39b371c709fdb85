package lab

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRoot means that the lab cannot make namespaces.
	ErrNotRoot = errors.New("the lab makes network namespaces: run it as root")
	// ErrMissingTool means that a program the lab needs is not installed.
	ErrMissingTool = errors.New("missing program")
	// ErrTimeout means that a condition did not come true before its deadline.
	ErrTimeout = errors.New("timed out")
	// ErrEnded means that a program ended which a condition needs.
	ErrEnded = errors.New("the agent ended")
)

// ExitError is a program that ended with a code other than 0.
type ExitError struct {
	Args   []string
	Code   int // -1 when it was ended by a signal
	Stdout string
	Stderr string
}

func (e *ExitError) Error() string {
	out := strings.TrimSpace(e.Stderr)
	if out == "" {
		out = strings.TrimSpace(e.Stdout)
	}
	return fmt.Sprintf("%s: exit code %d: %s", strings.Join(e.Args, " "), e.Code, out)
}
