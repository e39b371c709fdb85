package kube

import (
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
)

// maxDead bounds how many deleted objects are remembered.
const maxDead = 4096

// store is what is known of one kind. It takes additions and changes from any answer
// that is newer than what is known. It drops an object only after a DELETED event for
// exactly this object, or a proved list without it (see DESIGN.md).
type store struct {
	kind  api.Kind
	own   func(api.Object) bool // objects of this node: they are always taken, to be repaired
	vet   func(api.Object)      // changes an object before it is taken; nil: nothing to change
	items map[string]api.Object
	// floor is the version of the last proved list: an unknown object that is
	// older was deleted, and some cache shows it again.
	floor  uint64
	proved bool // items were complete once in this history
	latest bool // the last list was proved
	listed bool // there was any list
	absent bool // the API has no such kind, or forbids us to read it
	dead   map[string]struct{}
	order  []string // of dead, oldest first
}

func newStore(k api.Kind, own func(api.Object) bool) *store {
	return &store{kind: k, own: own, items: map[string]api.Object{}, dead: map[string]struct{}{}}
}

// setList takes a list of version rv. It reports whether anything changed. Any list
// is believed about the node's own objects: to create again what still exists does no
// harm, to miss what does not would leave the node out forever.
func (s *store) setList(items []api.Object, rv uint64, proved bool) bool {
	changed := !s.listed || proved && !s.proved
	s.listed, s.latest = true, proved
	if proved && !s.proved {
		clear(s.items) // whatever was heard before may be of another history
	}
	present := make(map[string]bool, len(items))
	for _, o := range items {
		present[o.Metadata().UID] = true
	}
	for name, o := range s.items {
		// What changed after the list was made is not in it, and stays.
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
		s.bury(identity(e.obj))
		cur, ok := s.items[m.Name]
		if !ok || cur.Metadata().UID != m.UID {
			return false // an earlier object of that name
		}
		delete(s.items, m.Name)
		return true
	}
	return false
}

// put takes o if it is newer. It reports whether more than the version changed: a
// kubelet writes its Node every few minutes, which is no reason to act.
func (s *store) put(o api.Object) bool {
	m := o.Metadata()
	if s.kind.Name == "nodes" && !s.own(o) {
		m.Annotations = nil // only the own Node's are used
	}
	if s.buried(o) {
		return false
	}
	rv := version(m.ResourceVersion)
	cur, ok := s.items[m.Name]
	if ok && rv <= version(cur.Metadata().ResourceVersion) || !ok && rv <= s.floor && !s.own(o) {
		return false
	}
	if s.vet != nil {
		s.vet(o)
	}
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

// replace takes other's objects, those of version rv, for its own. Those that a list of that version may lack, or have
// an older version of, stay if newer is true.
func (s *store) replace(other *store, rv uint64, newer bool) {
	for name, o := range s.items {
		if newer && !s.own(o) && version(o.Metadata().ResourceVersion) > rv {
			other.items[name] = o
		}
	}
	maps.DeleteFunc(other.items, func(_ string, o api.Object) bool { return s.buried(o) })
	s.items, s.floor = other.items, rv
	s.proved, s.latest, s.listed = true, true, true
}

// identity is what an object is buried by. A Node lives on if only a NodeRecord of it was deleted.
func identity(o api.Object) string {
	if n, ok := o.(*api.Node); ok && n.Record != "" {
		return n.Record
	}
	return o.Metadata().UID
}

// buried reports whether o is deleted, or a NodeRecord of a deleted Node.
func (s *store) buried(o api.Object) bool {
	_, dead := s.dead[o.Metadata().UID]
	_, gone := s.dead[identity(o)]
	return dead || gone
}

// bury remembers that the object with this UID is deleted for good.
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

// miss notes that an API server has no such kind, or forbids us to read it. It reports
// whether that changes anything. What was read before stays unless the kind is gone.
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
func (s *store) forget() {
	vet := s.vet
	*s = *newStore(s.kind, s.own)
	s.vet = vet
}

// each calls f for every object of type T.
func each[T api.Object](s *store, f func(T)) {
	for _, o := range s.items {
		if t, ok := o.(T); ok {
			f(t)
		}
	}
}

// find returns the object of that name, or T's zero value.
func find[T api.Object](s *store, name string) T {
	t, _ := s.items[name].(T)
	return t
}
