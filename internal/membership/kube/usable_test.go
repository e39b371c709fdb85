package kube

import (
	"errors"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// A snapshot in which this node's key is another member's is refused, whether or not the configured name is a member's, too.
func TestUsable(t *testing.T) {
	snap := mesh.State{Nodes: []mesh.Node{{Name: "a", PeerID: "1"}, {Name: "b", PeerID: "2"}}}
	for _, x := range []struct {
		name       string
		id         mesh.PeerID
		ok, config bool
	}{{"a", "1", true, false}, {"b", "1", false, true}, {"c", "1", false, true}, {"a", "3", false, false}, {"c", "3", false, false}} {
		err := (&Source{cfg: Config{NodeName: x.name, PeerID: x.id}}).usable(snap)
		if (err == nil) != x.ok || errors.Is(err, ErrConfig) != x.config {
			t.Errorf("%s with the key %s: %v", x.name, x.id, err)
		}
	}
}
