package p2p

import (
	"testing"
	"time"
)

func TestRelayedThenDirect(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "a's reservation", reserved(a, 1))
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if path.Kind != KindRelayed {
		t.Errorf("first path %+v, want relayed", path)
	}
	for _, x := range []struct{ n, to *Node }{{a, b}, {b, a}} {
		d := eventually(t, 10*time.Second, "direct", onPath(x.n, x.to.ID(), KindDirect, "tcp"))
		t.Logf("direct after %v: %+v", d, x.n.Status())
	}
}
