package p2p

import (
	"errors"
	"strings"
)

var (
	// ErrNotMember means that the membership does not list the peer.
	ErrNotMember = errors.New("peer is not a member")
	// ErrUnreachable means that no path to the peer could be made.
	ErrUnreachable = errors.New("peer is unreachable")
	// ErrShunned means that the peer is refused for a while (Node.Shun).
	ErrShunned = errors.New("peer is shunned")
	// ErrClosed means that the node was closed.
	ErrClosed = errors.New("node is closed")
	// ErrListen means that an address of Config.Listen cannot be listened on.
	ErrListen = errors.New("cannot listen")
)

// causes are several errors on one line; errors.Join's text has one line each,
// which tables and logs cannot show.
type causes []error

// join is errors.Join with a text of one line.
func join(errs ...error) error {
	var c causes
	for _, err := range errs {
		if err != nil {
			c = append(c, err)
		}
	}
	if len(c) == 0 {
		return nil
	}
	return c
}

func (c causes) Error() string {
	texts := make([]string, len(c))
	for i, err := range c {
		texts[i] = oneLine(err)
	}
	return strings.Join(texts, "; ")
}

func (c causes) Unwrap() []error { return c }

// oneLine is err's text with its lines joined by "; ".
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
