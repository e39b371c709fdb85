package kube

import (
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/kube/api"
)

// maxDead bounds how many deleted objects are remembered.
const maxDead = 4096

// store is what is known of one kind. Additions and changes are taken from any
// answer that is newer than what is known; an object leaves only by a DELETED
// event for exactly this object, or by a proved list without it (see DESIGN.md).
type store struct {
	kind  api.Kind
	own   func(api.Object) bool // objects of this node: they are always taken, to be mended
	items map[string]api.Object
	// floor is the version of the last proved list: an object that is older and not
	// known was deleted, and some cache brings it up again.
	floor  uint64
	proved bool // items were complete once, in this history
	listed bool // there was any list
	absent bool // the API has no such kind, or keeps it from us
	dead   map[string]struct{}
	order  []string // of dead, oldest first
}

func newStore(k api.Kind, own func(api.Object) bool) *store {
	return &store{kind: k, own: own, items: map[string]api.Object{}, dead: map[string]struct{}{}}
}

// setList takes a list of version rv. It reports whether anything changed. Of the
// node's own objects any list is believed: to make one again that is still there
// does no harm, to miss one that is not would leave the node out for ever.
func (s *store) setList(items []api.Object, rv uint64, proved bool) bool {
	changed := !s.listed || proved && !s.proved
	s.listed = true
	if proved && !s.proved {
		clear(s.items) // whatever was heard before may be of another history
	}
	present := make(map[string]bool, len(items))
	for _, o := range items {
		present[o.Metadata().UID] = true
	}
	for name, o := range s.items {
		// What came after the list was answered is not in it, and stays.
		later := proved && version(o.Metadata().ResourceVersion) > rv
		if !present[o.Metadata().UID] && !later && (proved || s.own(o)) {
			delete(s.items, name)
			changed = true
		}
	}
	if proved {
		s.proved = true
		s.floor = 0 // all that is listed exists
	}
	for _, o := range items {
		if s.put(o) {
			changed = true
		}
	}
	if proved {
		s.floor = rv
	}
	return changed
}

// apply takes a watch event. It reports whether anything changed.
func (s *store) apply(e event) bool {
	m := e.obj.Metadata()
	switch e.what {
	case added, modified:
		return s.put(e.obj)
	case deleted:
		s.bury(m.UID)
		cur, ok := s.items[m.Name]
		if !ok || cur.Metadata().UID != m.UID {
			return false // an earlier object of that name
		}
		delete(s.items, m.Name)
		return true
	}
	return false
}

// put takes o if it is news. It reports whether more than the version changed: a
// kubelet's report on its Node, every few minutes, is nobody's work.
func (s *store) put(o api.Object) bool {
	m := o.Metadata()
	if s.kind.Name == "nodes" && !s.own(o) {
		m.Annotations = nil // only the own Node's are asked for
	}
	if _, dead := s.dead[m.UID]; dead {
		return false
	}
	rv := version(m.ResourceVersion)
	if cur, ok := s.items[m.Name]; ok {
		if rv <= version(cur.Metadata().ResourceVersion) {
			return false
		}
	} else if rv <= s.floor && !s.own(o) {
		return false
	}
	cur, ok := s.items[m.Name]
	s.items[m.Name] = o
	return !ok || !sameContent(cur, o)
}

// sameContent compares all but the resource version.
func sameContent(a, b api.Object) bool {
	x, y := a.Metadata(), b.Metadata()
	rv := x.ResourceVersion
	x.ResourceVersion = y.ResourceVersion
	same := reflect.DeepEqual(a, b)
	x.ResourceVersion = rv
	return same
}

// bury remembers that the object with this UID is gone for good.
func (s *store) bury(uid string) {
	if _, ok := s.dead[uid]; ok {
		return
	}
	if len(s.order) == maxDead {
		delete(s.dead, s.order[0])
		s.order = s.order[1:]
	}
	s.dead[uid] = struct{}{}
	s.order = append(s.order, uid)
}

// miss notes an API server's word that there is no such kind, or that it is kept
// from us. It reports whether that is news. What was read before stays unless the
// kind is gone.
func (s *store) miss(why error) bool {
	news := !s.absent
	s.absent = true
	if apierrors.IsNotFound(why) && len(s.items) > 0 {
		clear(s.items)
		news = true
	}
	return news
}

// forget starts over: the API has another history.
func (s *store) forget() { *s = *newStore(s.kind, s.own) }

// each calls f for every object of type T.
func each[T api.Object](s *store, f func(T)) {
	for _, o := range s.items {
		if t, ok := o.(T); ok {
			f(t)
		}
	}
}

// find returns the object called name, or T's zero value.
func find[T api.Object](s *store, name string) T {
	t, _ := s.items[name].(T)
	return t
}
