package dialer

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
)

var errTakesNothing = errors.New("the far end takes nothing more")

// answering is a stream that takes nothing, with what the relay has sent.
type answering struct {
	network.Stream
	said bytes.Buffer
}

func (*answering) Write([]byte) (int, error)       { return 0, errTakesNothing }
func (a *answering) Read(b []byte) (int, error)    { return a.said.Read(b) }
func (*answering) SetReadDeadline(time.Time) error { return nil }

func answered(t *testing.T, status pb.Status) *circuit {
	t.Helper()
	a := &answering{}
	if err := util.NewDelimitedWriter(&a.said).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_STATUS.Enum(), Status: &status}); err != nil {
		t.Fatal(err)
	}
	return &circuit{Stream: a}
}

// A relay's refusal is known although it takes nothing after it, as over QUIC. Once there is a circuit, writes fail.
func TestRefusalAfterAFailedWrite(t *testing.T) {
	c := answered(t, pb.Status_NO_RESERVATION)
	if n, err := c.Write([]byte("ClientHello")); err != nil || n != len("ClientHello") {
		t.Errorf("%d, %v: the handshake ends without the relay's answer", n, err)
	}
	said := RefusedCircuit(0)
	if _, err := c.Read(make([]byte, 10)); !errors.As(err, &said) || pb.Status(said) != pb.Status_NO_RESERVATION {
		t.Error(err)
	}
	c = answered(t, pb.Status_OK)
	_, _ = c.Read(make([]byte, 10))
	if _, err := c.Write([]byte("data")); !errors.Is(err, errTakesNothing) {
		t.Errorf("a write on a circuit that takes nothing: %v", err)
	}
}
