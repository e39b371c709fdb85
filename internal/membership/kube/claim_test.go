package kube

import (
	"net/netip"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
)

// TestBlockThatIsDeleted: a PodBlock that is about to be gone does not count as the node's, so that it claims another one.
func TestBlockThatIsDeleted(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	node, now := &api.Node{Meta: api.Meta{Name: "edge-1", UID: "u"}}, time.Now()
	for _, deleted := range []*time.Time{nil, &now} {
		b := &api.PodBlock{Meta: api.Meta{Name: api.BlockName(netip.MustParsePrefix("10.244.1.0/24")), DeletionTimestamp: deleted}, Spec: api.PodBlockSpec{NodeName: "edge-1", CIDR: "10.244.1.0/24"}}
		c := &claimer{writer: &writer{refused: "u"}, claims: map[string]*api.PodBlock{}}
		has, err := c.adopt(t.Context(), want{node: node, own: []*api.PodBlock{b}}, ranges)
		if err != nil || has != (deleted == nil) {
			t.Errorf("deleted at %v: has a block %v, %v", deleted, has, err)
		}
	}
}
