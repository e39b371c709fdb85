package relays

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// After some failures dials leave from other ports, but not forever: a firewall may let out the listening ones alone.
func TestPorts(t *testing.T) {
	var p ports
	var got []bool
	for p.misses = range 9 {
		got = append(got, p.others())
	}
	for i, want := range []bool{false, false, true, true, false, true, true, true, false} {
		if got[i] != want {
			t.Errorf("after %d failures, from other ports: %v", i, got[i])
		}
	}
	now := time.Now()
	if !p.due(now) {
		t.Error("the listening ports are not tried beside others that got through")
	}
	if p.stuck = now; p.due(now.Add(forgetful-1)) || !p.due(now.Add(forgetful)) {
		t.Error("the listening ports are tried again too early, or too late")
	}
}

// Only silence is a reason for other ports.
func TestUnanswered(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		quic bool
		err  error
		want bool
	}{
		{false, fmt.Errorf("dial: %w", timeout), true},
		{false, &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}, false},
		{false, &net.OpError{Op: "dial", Err: unix.ENETUNREACH}, false},
		{false, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, false},
		{false, context.DeadlineExceeded, false}, // connected, and then no handshake
		{true, context.DeadlineExceeded, true},
		{true, &quic.IdleTimeoutError{}, true},
		{true, &quic.HandshakeTimeoutError{}, true},
		{true, errors.New("peer id mismatch"), false},
	} {
		if got := unanswered(c.quic, c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
