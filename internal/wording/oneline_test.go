package wording

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

var errUnreachable = errors.New("peer is unreachable")

// Reasons are cells of tables: whatever libp2p says, they are one line.
func TestReasonsAreOneLine(t *testing.T) {
	swarm := errors.New("failed to dial:\n  * [/ip4/1.2.3.4/tcp/1] refused\n")
	for _, c := range []struct {
		err  error
		want string
	}{
		{Join(io.EOF, nil, swarm, io.EOF), "EOF; failed to dial:; * [/ip4/1.2.3.4/tcp/1] refused"},
		{Join(errors.Join(io.EOF, io.ErrClosedPipe)), "EOF; io: read/write on closed pipe"},
		{fmt.Errorf("%w: %w", errUnreachable, Join(Join(io.EOF), io.ErrNoProgress)), "peer is unreachable: EOF; multiple Read calls return no data or error"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if err := Join(nil, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if err := Join(io.EOF, io.ErrClosedPipe); !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v does not wrap both", err)
	}
}
