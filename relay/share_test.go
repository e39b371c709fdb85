package main

import (
	"net"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	manet "github.com/multiformats/go-multiaddr/net"
)

// given is a scope that notes that it was given back.
type given struct {
	network.ConnManagementScope
	back int
}

func (g *given) Done() { g.back++ }

// TestDroppedConnectionGivesItsSlotBack: what comes to a shared port and says nothing counts no longer once it is closed.
func TestDroppedConnectionGivesItsSlotBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := manet.WrapNetConn(c)
	if err != nil {
		t.Fatal(err)
	}
	g := &given{}
	accepted{conn, g}.drop()
	if g.back != 1 {
		t.Errorf("the slot was given back %d times", g.back)
	}
	if _, err := c.Write([]byte{0}); err == nil {
		t.Error("the connection is open")
	}
}
