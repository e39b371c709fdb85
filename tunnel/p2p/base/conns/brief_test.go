package conns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/quic-go/quic-go"
)

func TestBrief(t *testing.T) {
	for want, err := range map[string]error{
		NoAnswer:                 fmt.Errorf("dial: %w", context.DeadlineExceeded),
		"connection refused":     fmt.Errorf("dial tcp4 0.0.0.0:24250->5.5.5.5:4501: connect: %w", syscall.ECONNREFUSED),
		"not found":              fmt.Errorf("routing: %w", routing.ErrNotFound),
		"network is unreachable": &quic.TransportError{ErrorCode: quic.InternalError, ErrorMessage: "write udp4 0.0.0.0:1->5.5.5.5:2: sendmsg: network is unreachable"},
		"the connection ended":   fmt.Errorf("read the answer: %w", &network.ConnError{TransportError: io.EOF}),
		"what it is":             errors.New("what it is"),
	} {
		if got := Plain(err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if got := Brief(&quic.TransportError{ErrorCode: quic.InternalError, ErrorMessage: "one word"}); got != "one word" {
		t.Error(got)
	}
}
