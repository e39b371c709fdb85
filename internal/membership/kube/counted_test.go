package kube

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

func claimed(cidr, node string, second int) *api.PodBlock {
	b := kubetest.PodBlock(cidr, node)
	b.Meta.CreationTimestamp = kubetest.At(second)
	return b
}

func blockNames(blocks []*api.PodBlock) string {
	var out []string
	for _, b := range blocks {
		out = append(out, b.Spec.NodeName+"="+b.Spec.CIDR)
	}
	return strings.Join(out, " ")
}

// Two of each IP version count, the first ones and among them the first by name; the order of the list does not matter.
func TestSplitBlocks(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/48")}
	leaving := claimed("10.244.0.0/24", "a", 0)
	now := time.Now()
	leaving.Meta.DeletionTimestamp = &now
	unreadable := claimed("10.244.0.0/24", "a", 0)
	unreadable.Spec.CIDR = "10.244.0.0"
	for name, x := range map[string]struct {
		blocks         []*api.PodBlock
		count, surplus string
	}{
		"none": {},
		"one of each version": {[]*api.PodBlock{claimed("10.244.1.0/24", "a", 1), claimed("fd00:0:0:1::/64", "a", 1)},
			"a=10.244.1.0/24 a=fd00:0:0:1::/64", ""},
		"two count": {[]*api.PodBlock{claimed("10.244.2.0/24", "a", 1), claimed("10.244.1.0/24", "a", 9)},
			"a=10.244.2.0/24 a=10.244.1.0/24", ""},
		"the third does not": {[]*api.PodBlock{claimed("10.244.1.0/24", "a", 9), claimed("10.244.2.0/24", "a", 1), claimed("10.244.3.0/24", "a", 2)},
			"a=10.244.2.0/24 a=10.244.3.0/24", "a=10.244.1.0/24"},
		"in one second, by name": {[]*api.PodBlock{claimed("10.244.3.0/24", "a", 1), claimed("10.244.2.0/24", "a", 1), claimed("10.244.1.0/24", "a", 1)},
			"a=10.244.1.0/24 a=10.244.2.0/24", "a=10.244.3.0/24"},
		"each version by itself": {[]*api.PodBlock{claimed("10.244.1.0/24", "a", 1), claimed("10.244.2.0/24", "a", 2), claimed("fd00:0:0:1::/64", "a", 3),
			claimed("fd00:0:0:2::/64", "a", 4), claimed("fd00:0:0:3::/64", "a", 5)},
			"a=10.244.1.0/24 a=10.244.2.0/24 a=fd00:0:0:1::/64 a=fd00:0:0:2::/64", "a=fd00:0:0:3::/64"},
		"each node by itself": {[]*api.PodBlock{claimed("10.244.1.0/24", "a", 1), claimed("10.244.2.0/24", "a", 2), claimed("10.244.3.0/24", "a", 3), claimed("10.244.4.0/24", "b", 4)},
			"a=10.244.1.0/24 a=10.244.2.0/24 b=10.244.4.0/24", "a=10.244.3.0/24"},
		"of a former range: neither, but no hoard": {[]*api.PodBlock{claimed("10.99.1.0/24", "a", 1), claimed("10.99.2.0/24", "a", 2), claimed("10.99.3.0/24", "a", 3), claimed("10.244.1.0/24", "a", 4)},
			"a=10.244.1.0/24", "a=10.99.3.0/24"},
		"not aligned, not canonical: neither, but no hoard": {[]*api.PodBlock{claimed("10.244.1.5/24", "a", 1), claimed("10.244.1.6/24", "a", 2), claimed("10.244.1.7/24", "a", 3),
			claimed("fd00:0:0:1:0::/64", "a", 3), claimed("10.244.1.0/24", "b", 4)}, "b=10.244.1.0/24", "a=10.244.1.7/24"},
		"on its way out, or unreadable: neither": {[]*api.PodBlock{leaving, unreadable, claimed("10.244.1.0/24", "a", 1), claimed("10.244.2.0/24", "a", 2)},
			"a=10.244.1.0/24 a=10.244.2.0/24", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				rand.Shuffle(len(x.blocks), func(i, j int) { x.blocks[i], x.blocks[j] = x.blocks[j], x.blocks[i] })
				before := slices.Clone(x.blocks)
				count, surplus := SplitBlocks(x.blocks, ranges)
				if blockNames(count) != x.count || blockNames(surplus) != x.surplus {
					t.Fatalf("of %s: count %q, surplus %q; want %q, %q", blockNames(x.blocks), blockNames(count), blockNames(surplus), x.count, x.surplus)
				}
				if !slices.Equal(before, x.blocks) {
					t.Fatal("the list itself was changed")
				}
			}
		})
	}
}

func TestHoarders(t *testing.T) {
	got := Hoarders([]*api.PodBlock{claimed("10.244.3.0/24", "b", 1), claimed("10.244.2.0/24", "a", 1), claimed("10.244.1.0/24", "b", 1)})
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
}
