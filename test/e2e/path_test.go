package e2e

import (
	"sync"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestBulkFromFirstPacket sends 200 MB in each direction as fast as it gets, beginning
// with the first packet between two idle sites: the path moves from relayed to
// punched under full load.
func TestBulkFromFirstPacket(t *testing.T) {
	tier.All(t)
	p := newPair(t, lab.EIM, lab.EIM)
	var wg sync.WaitGroup
	for _, dir := range [][]string{{"--bytes", "200000000"}, {"--bytes", "200000000", "--pull"}} {
		for _, addrs := range pairs(p.pod1, p.pod2) {
			wg.Go(func() {
				var b lab.Bulk
				err := p.pod1.Tool(within(t, 90*time.Second), &b, append(append([]string{"bulk"}, dir...), addrs[1].String())...)
				if err != nil || !b.Match {
					t.Errorf("%v to %s: %+v: %v", dir, addrs[1], b, err)
				}
				t.Logf("%v to %s: %.0f Mbit/s, longest stall %.0f ms", dir, addrs[1], b.Mbps, b.StallMs)
			})
		}
	}
	wg.Wait()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		if _, err := n[0].WaitPath(within(t, 10*time.Second), n[1], "punched"); err != nil {
			t.Error(err)
		}
	}
}
