package p2p

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// Reasons are cells of tables: whatever libp2p says, they are one line.
func TestReasonsAreOneLine(t *testing.T) {
	swarm := errors.New("failed to dial:\n  * [/ip4/1.2.3.4/tcp/1] refused\n")
	for _, c := range []struct {
		err  error
		want string
	}{
		{join(io.EOF, nil, swarm), "EOF; failed to dial:; * [/ip4/1.2.3.4/tcp/1] refused"},
		{join(errors.Join(io.EOF, io.ErrClosedPipe)), "EOF; io: read/write on closed pipe"},
		{fmt.Errorf("%w: %w", ErrUnreachable, join(join(io.EOF), io.ErrNoProgress)), "peer is unreachable: EOF; multiple Read calls return no data or error"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if err := join(nil, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if err := join(io.EOF, ErrClosed); !errors.Is(err, io.EOF) || !errors.Is(err, ErrClosed) {
		t.Errorf("%v does not wrap both", err)
	}
}
