package read

import (
	"testing"

	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
)

// TestUnprovedListKeeps: what a list lacks is gone only where the list is proved to be current; a cache without its cloud may give an old one.
func TestUnprovedListKeeps(t *testing.T) {
	object := func(name string) api.Object {
		return &api.PodBlock{Meta: api.Meta{Name: name, UID: name, ResourceVersion: "1"}}
	}
	f := &followed{kind: api.PodBlocks(), items: map[string]api.Object{}}
	f.take(kube.News{All: true, Proved: true, List: []api.Object{object("a"), object("b")}})
	f.take(kube.News{All: true, List: []api.Object{object("a")}})
	if len(f.items) != 2 {
		t.Errorf("after a list that nothing proves: %v", f.items)
	}
	f.take(kube.News{All: true, Proved: true, List: []api.Object{object("a")}})
	if len(f.items) != 1 {
		t.Errorf("after one that is proved: %v", f.items)
	}
}
