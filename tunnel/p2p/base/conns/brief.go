package conns

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/quic-go/quic-go"
)

// NoAnswer is the cause of most failures: packets went nowhere.
const NoAnswer = "no answer"

// Brief is the cause of a failed dial, stream or look-up, for people.
func Brief(err error) string {
	var sys syscall.Errno
	var local *quic.TransportError
	var conn *network.ConnError
	var stream *network.StreamError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED): // of several tries it says more than those without an answer
		return syscall.ECONNREFUSED.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, os.ErrDeadlineExceeded):
		return NoAnswer
	case errors.As(err, &sys):
		return sys.Error()
	case errors.Is(err, routing.ErrNotFound):
		return "not found"
	case errors.As(err, &local) && !local.Remote && local.ErrorCode == quic.InternalError: // of a system call, as text alone
		parts := strings.Split(local.ErrorMessage, ": ")
		return parts[len(parts)-1]
	case errors.As(err, &stream), errors.As(err, &conn), errors.Is(err, network.ErrReset):
		return "the connection ended"
	}
	return err.Error()
}

// Plain is err with its cause alone as text.
func Plain(err error) error { return plain{err} }

type plain struct{ error }

func (p plain) Error() string { return Brief(p.error) }
func (p plain) Unwrap() error { return p.error }
