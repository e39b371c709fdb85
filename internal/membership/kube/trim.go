package kube

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

// networkUnavailable is the condition of a Node that cloud controllers set to
// True until the pod network is there; the node lifecycle controller turns it
// into the taint node.kubernetes.io/network-unavailable:NoSchedule.
const networkUnavailable = "NetworkUnavailable"

// list reads a collection without what is not used.
func list(ctx context.Context, c *client.Client, k api.Kind) ([]api.Object, string, error) {
	return c.List(ctx, k, trim)
}

// trim drops what is not used.
func trim(o api.Object) {
	maps.DeleteFunc(o.Metadata().Labels, func(key, _ string) bool {
		return key != mesh.SiteLabel && !strings.HasPrefix(key, mesh.RestrictedPrefix)
	})
	if n, ok := o.(*api.Node); !ok || len(n.Meta.Labels) == 0 {
		o.Metadata().Labels = nil
	}
	switch o.(type) {
	case *keep.BlockAffinity, *keep.CiliumNode:
		o.Metadata().Annotations, o.Metadata().OwnerReferences = nil, nil
	}
	if n, ok := o.(*api.Node); ok {
		n.Meta.Annotations, n.Meta.OwnerReferences = keep.Annotations(n.Meta.Annotations), nil
		var one []api.Condition
		if c := api.FindCondition(n.Status.Conditions, networkUnavailable); c != nil {
			one = []api.Condition{*c}
		}
		n.Status.Conditions = one
		n.Status.Addresses = slices.DeleteFunc(n.Status.Addresses, func(a api.NodeAddress) bool { return a.Type != api.InternalIP })
	}
}

// version parses a resource version. Those of one cluster are comparable
// (Kubernetes 1.35, KEP-5504); an answer without one, as caches give, is 0: older
// than everything.
func version(rv string) uint64 {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
