package kube

import (
	"strconv"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

func meshNode(name, uid string, rv int) *api.MeshNode {
	return kubetest.UID(kubetest.Version(kubetest.MeshNode(name, ""), rv), uid)
}

// content is NAME/UID@VERSION of everything, by name.
func content(s *store) string {
	var out []string
	for _, name := range sortedKeys(s.items) {
		m := s.items[name].Metadata()
		out = append(out, name+"/"+m.UID+"@"+m.ResourceVersion)
	}
	return strings.Join(out, " ")
}

func TestStore(t *testing.T) {
	list := func(proved bool, rv uint64, items ...api.Object) func(*store) {
		return func(s *store) { s.setList(items, rv, proved) }
	}
	ev := func(what string, o api.Object) func(*store) {
		return func(s *store) { s.apply(event{api.MeshNodes(), what, o}) }
	}
	for name, x := range map[string]struct {
		steps []func(*store)
		want  string
	}{
		"a list and changes": {[]func(*store){
			list(true, 10, meshNode("a", "1", 5), meshNode("b", "2", 6)),
			ev(modified, meshNode("a", "1", 11)), ev(added, meshNode("c", "3", 12)), ev(deleted, meshNode("b", "2", 13)),
		}, "a/1@11 c/3@12"},
		"a list that is not proved removes nothing": {[]func(*store){
			list(true, 10, meshNode("a", "1", 5)), list(false, 11), list(false, 12, meshNode("b", "2", 12)),
		}, "a/1@5 b/2@12"},
		"a proved one does": {[]func(*store){
			list(true, 10, meshNode("a", "1", 5), meshNode("b", "2", 6)), list(true, 11, meshNode("b", "2", 6)),
		}, "b/2@6"},
		"what came after the list was answered stays": {[]func(*store){
			list(true, 10), ev(added, meshNode("a", "1", 12)), list(true, 11),
		}, "a/1@12"},
		"old news": {[]func(*store){
			list(true, 10, meshNode("a", "1", 9)), ev(modified, meshNode("a", "1", 8)), ev(added, meshNode("a", "0", 7)),
		}, "a/1@9"},
		"a zombie from before the list": {[]func(*store){
			list(true, 10), ev(added, meshNode("a", "1", 9)), list(false, 11, meshNode("b", "2", 10)),
		}, ""},
		"a zombie from after it": {[]func(*store){
			list(true, 10), ev(added, meshNode("a", "1", 12)), ev(deleted, meshNode("a", "1", 14)), ev(added, meshNode("a", "1", 12)), ev(modified, meshNode("a", "1", 15)),
		}, ""},
		"made again under its name": {[]func(*store){
			list(true, 10, meshNode("a", "1", 9)), ev(deleted, meshNode("a", "1", 11)), ev(added, meshNode("a", "2", 12)), ev(deleted, meshNode("a", "1", 11)),
		}, "a/2@12"},
		"own objects leave with any list, to be made again": {[]func(*store){
			list(true, 10, meshNode("self", "1", 9), meshNode("b", "2", 9)), list(false, 11),
		}, "b/2@9"},
		"own objects come from any time": {[]func(*store){
			list(true, 10), ev(added, meshNode("self", "1", 3)), ev(added, meshNode("b", "2", 3)),
		}, "self/1@3"},
		"without versions everything is unproved": {[]func(*store){
			list(true, 10, meshNode("a", "1", 9)), list(false, 0, meshNode("a", "1", 0), meshNode("b", "2", 0)),
		}, "a/1@9"},
		"another history": {[]func(*store){
			list(true, 1000, meshNode("a", "1", 900)), (*store).forget, list(true, 10, meshNode("a", "2", 9)),
		}, "a/2@9"},
		"late news of the history before": {[]func(*store){
			list(true, 1000, meshNode("a", "1", 900)), (*store).forget, ev(modified, meshNode("a", "1", 1100)), ev(modified, meshNode("b", "2", 1101)), list(true, 10, meshNode("b", "2", 9)),
		}, "b/2@9"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(api.MeshNodes(), func(o api.Object) bool { return o.Metadata().Name == "self" })
			for _, step := range x.steps {
				step(s)
			}
			if got := content(s); got != x.want {
				t.Errorf("got %q, want %q", got, x.want)
			}
		})
	}
}

func TestStoreForgetsTheOldestDead(t *testing.T) {
	s := newStore(api.MeshNodes(), func(api.Object) bool { return false })
	for i := range maxDead + 10 {
		s.bury(strconv.Itoa(i))
	}
	if len(s.dead) != maxDead || len(s.order) != maxDead {
		t.Errorf("%d and %d are remembered, want %d", len(s.dead), len(s.order), maxDead)
	}
	if _, ok := s.dead["9"]; ok {
		t.Error("the oldest is remembered")
	}
}

// A version that is new with nothing else is noted, and wakes nobody.
func TestStoreIgnoresHeartbeats(t *testing.T) {
	s := newStore(api.Nodes(), func(api.Object) bool { return false })
	s.setList([]api.Object{kubetest.Node("a", 1, "10.244.1.0/24")}, 10, true)
	beat, change := kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("a", 1, "10.244.2.0/24")
	beat.Meta.ResourceVersion, change.Meta.ResourceVersion = "11", "12"
	if s.apply(event{api.Nodes(), modified, beat}) {
		t.Error("a heartbeat is a change")
	}
	if got := content(s); got != "a/n-a@11" {
		t.Errorf("holds %q", got)
	}
	if !s.apply(event{api.Nodes(), modified, change}) {
		t.Error("a change is none")
	}
}
