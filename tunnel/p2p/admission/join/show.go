package join

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

// maxWords bounds what a relay says of a statement, in bytes.
const maxWords = 255

var (
	// ErrShown means that what a peer shows is no statement.
	ErrShown = errors.New("no statement, or a larger one than a member shows")
	// ErrRefused means that a relay takes this node's statement for none that makes it a member.
	ErrRefused = errors.New("the relay does not take this node for a member")
)

// show is the member's side: it shows what was signed about it.
func show(ctx context.Context, c network.Conn, statement string) error {
	s, err := conns.Open(ctx, c, identity.MemberProtocol)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := s.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(statement))), statement...)); err != nil {
		return fmt.Errorf("show the statement: %w", err)
	}
	var length [1]byte
	_, err = io.ReadFull(s, length[:])
	words := make([]byte, length[0])
	if err == nil {
		_, err = io.ReadFull(s, words)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read verdict: %w", err)
	case len(words) > 0:
		return fmt.Errorf("%w: %q", ErrRefused, words)
	}
	return nil
}

// ReadShown reads what a peer shows, of so many bytes at most.
func ReadShown(s network.Stream, most uint16) (string, error) {
	if err := s.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	var length [2]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return "", fmt.Errorf("read the statement: %w", err)
	}
	size := binary.BigEndian.Uint16(length[:])
	if size == 0 || size > most {
		return "", ErrShown
	}
	out := make([]byte, size)
	if _, err := io.ReadFull(s, out); err != nil {
		return "", fmt.Errorf("read the statement: %w", err)
	}
	return string(out), nil
}

// AnswerShown says why a statement makes its peer no member; nil: it does.
func AnswerShown(s network.Stream, why error) error {
	words := ""
	if why != nil {
		words = why.Error()
		words = words[:min(len(words), maxWords)]
	}
	if _, err := s.Write(append([]byte{byte(len(words))}, words...)); err != nil {
		return fmt.Errorf("write verdict: %w", err)
	}
	return s.Close()
}
