package relayservice

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"

	"edgemesh/tunnel/p2p/base/conns"
)

// A circuit's far end that does not answer keeps its slot for conns.Patience: reading its answer ends then. One that answers keeps its
// stream for longer.
func TestSilentEnd(t *testing.T) {
	for answers, name := range map[bool]string{true: "answers", false: "is silent"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay, err := libp2p.New(libp2p.NoListenAddrs)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = relay.Close() })
			end, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = end.Close() })
			end.SetStreamHandler(proto.ProtoIDv2Stop, func(s network.Stream) {
				if answers {
					_, _ = s.Write([]byte{1})
					time.Sleep(conns.Patience + 500*time.Millisecond) // sleep: it stops in the middle of its answer
					_, _ = s.Write([]byte{2})
				}
			})
			if err := relay.Connect(t.Context(), peer.AddrInfo{ID: end.ID(), Addrs: end.Addrs()}); err != nil {
				t.Fatal(err)
			}
			s, err := stopHost{relay, func(network.Conn) bool { return false }}.NewStream(t.Context(), end.ID(), proto.ProtoIDv2Stop)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
			ended := make(chan int)
			go func() {
				n := 0
				for b := make([]byte, 1); n < 2; {
					m, err := s.Read(b)
					if n += m; err != nil {
						break
					}
				}
				ended <- n
			}()
			select {
			case n := <-ended:
				if want := map[bool]int{true: 2}[answers]; n != want {
					t.Errorf("%d bytes read, want %d", n, want)
				}
			case <-time.After(10 * time.Second):
				_ = s.Reset()
				t.Error("a silent end is waited for")
				<-ended
			}
		})
	}
}
