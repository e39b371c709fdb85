package relays

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"edgemesh/internal/cause"
	"edgemesh/internal/proxy"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
)

// What only one address says counts more than that the others are silent, and no text of a library becomes a cause.
func TestCauseOf(t *testing.T) {
	late := fmt.Errorf("quic: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		err  error
		want cause.Cause
	}{
		{errFull, cause.Full},
		{errNoRelay, cause.NoRelayHere},
		{late, cause.NoAnswer},
		{errors.New("a library's text \x1b[31m"), cause.NoAnswer},
		{wording.Join(late, syscall.ECONNREFUSED), cause.Refused},
		{wording.Join(syscall.ENETUNREACH, late), cause.NoRoute},
		{wording.Join(late, refused(conns.ErrRefused)), cause.RefusesUs},
		{wording.Join(refused(conns.ErrRefused), conns.ErrInside), cause.Inside},
		{wording.Join(late, &proxy.Error{Cause: proxy.Forbidden, Err: late}), cause.Proxy},
		{wording.Join(&net.DNSError{Err: "timeout"}, &net.DNSError{}), cause.NoName},
		{wording.Join(&net.DNSError{Err: "timeout"}, syscall.ECONNREFUSED, late), cause.Refused},
	} {
		if got := causeOf(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}
