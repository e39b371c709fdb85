package p2p

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/who/members"
)

// A session gets new keys again and again, and no datagram is lost by that.
func TestKeysAreRenewed(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay}}
	b := loopbackNode(t, kb, m)
	a, err := New(Config{Key: ka, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), Membership: m,
		Log: testLog(t, "a"), tuned: tuned{renew: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	take(a)
	in := take(b)
	fair.Eventually(t, 10*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 20*time.Second, "datagrams", hasDatagrams(s, 1))
	n := uint32(0)
	for renewed := 0; renewed < 2; {
		_, _, before := in.snapshot()
		for range 5 {
			if err := s.PutDatagram(binary.BigEndian.AppendUint32(nil, n)); err != nil {
				t.Fatalf("datagram %d: %v", n, err)
			}
			n++
		}
		if err := s.FlushDatagrams(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		_, _, after := in.snapshot() // a sink is closed with its session
		renewed += after - before
		if n > 1<<14 {
			t.Fatal("the keys are not renewed")
		}
	}
	fair.Eventually(t, 10*time.Second, "all arrive", func() error {
		if got, _, _ := in.snapshot(); len(got) != int(n) {
			return fmt.Errorf("%d of %d", len(got), n)
		}
		return nil
	})
	seen := make([]bool, n)
	got, _, _ := in.snapshot()
	for _, d := range got {
		seen[binary.BigEndian.Uint32(d)] = true
	}
	for i, ok := range seen {
		if !ok {
			t.Errorf("datagram %d is missing", i)
		}
	}
	if n := b.packets.Refused(packet.RefusedReplaced); n != 0 {
		t.Errorf("%d sessions were ended by the receiver", n)
	}
}
