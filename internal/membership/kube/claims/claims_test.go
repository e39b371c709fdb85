package claims

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

func block(cidr, node string, second int) *api.PodBlock {
	b := kubetest.PodBlock(cidr, node)
	b.Meta.CreationTimestamp = kubetest.At(second)
	return b
}

func names(blocks []*api.PodBlock) string {
	var out []string
	for _, b := range blocks {
		out = append(out, b.Spec.NodeName+"="+b.Spec.CIDR)
	}
	return strings.Join(out, " ")
}

// Two of each IP version count, the first ones and among them the first by name; the order of the list does not matter.
func TestSplit(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/48")}
	leaving := block("10.244.0.0/24", "a", 0)
	now := time.Now()
	leaving.Meta.DeletionTimestamp = &now
	unreadable := block("10.244.0.0/24", "a", 0)
	unreadable.Spec.CIDR = "10.244.0.0"
	for name, x := range map[string]struct {
		blocks         []*api.PodBlock
		count, surplus string
	}{
		"none": {},
		"one of each version": {[]*api.PodBlock{block("10.244.1.0/24", "a", 1), block("fd00:0:0:1::/64", "a", 1)},
			"a=10.244.1.0/24 a=fd00:0:0:1::/64", ""},
		"two count": {[]*api.PodBlock{block("10.244.2.0/24", "a", 1), block("10.244.1.0/24", "a", 9)},
			"a=10.244.2.0/24 a=10.244.1.0/24", ""},
		"the third does not": {[]*api.PodBlock{block("10.244.1.0/24", "a", 9), block("10.244.2.0/24", "a", 1), block("10.244.3.0/24", "a", 2)},
			"a=10.244.2.0/24 a=10.244.3.0/24", "a=10.244.1.0/24"},
		"in one second, by name": {[]*api.PodBlock{block("10.244.3.0/24", "a", 1), block("10.244.2.0/24", "a", 1), block("10.244.1.0/24", "a", 1)},
			"a=10.244.1.0/24 a=10.244.2.0/24", "a=10.244.3.0/24"},
		"each version by itself": {[]*api.PodBlock{block("10.244.1.0/24", "a", 1), block("10.244.2.0/24", "a", 2), block("fd00:0:0:1::/64", "a", 3),
			block("fd00:0:0:2::/64", "a", 4), block("fd00:0:0:3::/64", "a", 5)},
			"a=10.244.1.0/24 a=10.244.2.0/24 a=fd00:0:0:1::/64 a=fd00:0:0:2::/64", "a=fd00:0:0:3::/64"},
		"each node by itself": {[]*api.PodBlock{block("10.244.1.0/24", "a", 1), block("10.244.2.0/24", "a", 2), block("10.244.3.0/24", "a", 3), block("10.244.4.0/24", "b", 4)},
			"a=10.244.1.0/24 a=10.244.2.0/24 b=10.244.4.0/24", "a=10.244.3.0/24"},
		"of a former range: neither": {[]*api.PodBlock{block("10.99.1.0/24", "a", 1), block("10.99.2.0/24", "a", 2), block("10.99.3.0/24", "a", 3), block("10.244.1.0/24", "a", 4)},
			"a=10.244.1.0/24", ""},
		"on its way out, or unreadable: neither": {[]*api.PodBlock{leaving, unreadable, block("10.244.1.0/24", "a", 1), block("10.244.2.0/24", "a", 2)},
			"a=10.244.1.0/24 a=10.244.2.0/24", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				rand.Shuffle(len(x.blocks), func(i, j int) { x.blocks[i], x.blocks[j] = x.blocks[j], x.blocks[i] })
				before := slices.Clone(x.blocks)
				count, surplus := Split(x.blocks, ranges)
				if names(count) != x.count || names(surplus) != x.surplus {
					t.Fatalf("of %s: count %q, surplus %q; want %q, %q", names(x.blocks), names(count), names(surplus), x.count, x.surplus)
				}
				if !slices.Equal(before, x.blocks) {
					t.Fatal("the list itself was changed")
				}
			}
		})
	}
}

func TestHoarders(t *testing.T) {
	got := Hoarders([]*api.PodBlock{block("10.244.3.0/24", "b", 1), block("10.244.2.0/24", "a", 1), block("10.244.1.0/24", "b", 1)})
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
}
