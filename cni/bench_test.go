package main_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"edgemesh/internal/cni/ipam"
)

// BenchmarkADD is one ADD, process start included, of a dual-stack pod on a
// node with 50 pods. DEL and the namespace are not counted.
func BenchmarkADD(b *testing.B) {
	n := newNode(b, "10.244.1.0/24", "fd00:1::/64")
	for i := range 50 {
		n.add(fmt.Sprintf("p%d", i))
	}
	n.benchADD(b)
}

// BenchmarkADDWithAllNamesKept is BenchmarkADD on a node that remembers as many
// gone pods as it may, in both families.
func BenchmarkADDWithAllNamesKept(b *testing.B) {
	n := newNode(b, "10.244.0.0/16", "fd00:1::/64")
	n.add("first") // makes the store
	v4, v6 := netip.MustParseAddr("10.244.1.0"), netip.MustParseAddr("fd00:1::1:0")
	for i := range ipam.MaxKept {
		for _, a := range []netip.Addr{v4, v6} {
			r := ipam.Record{IP: a, Boot: "earlier", Allocated: time.Unix(int64(i), 0).UTC(), Released: time.Unix(int64(i+1), 0).UTC(),
				Owner: ipam.Owner{Network: "edgemesh", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0",
					Namespace: "default", Pod: fmt.Sprintf("job-%d-abcde", i), UID: "7cb2f9a0-4b5e-4d43-9f3c-0123456789ab"}}
			if err := os.WriteFile(filepath.Join(n.data, r.FileName()), r.Encode(), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		v4, v6 = v4.Next(), v6.Next()
	}
	for i := range 50 {
		n.add(fmt.Sprintf("p%d", i))
	}
	n.benchADD(b)
}

func (n *node) benchADD(b *testing.B) {
	netns, conf := newNS(b), n.netconf(nil)
	var times []time.Duration
	for i := range b.N {
		id, start := fmt.Sprintf("c%d", i), time.Now()
		if _, err := n.call("ADD", id, netns.Path(), args("bench", "u"), conf); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(start))
		if _, err := n.call("DEL", id, netns.Path(), args("bench", "u"), conf); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "ms-p99")
}
