package read

import (
	"errors"
	"fmt"

	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// followed is one kind, and what was read of it.
type followed struct {
	key  string
	kind api.Kind
	stop func()

	items   map[string]api.Object // by NAMESPACE/NAME
	changed map[string]bool       // keys that Peers do not have as they are
	listed  bool
	proved  bool // an API server has said so, once
	trouble error
	refused error // it could be read before
}

// keyOf names what a follower reads.
func keyOf(k api.Kind) string { return k.Path("") + "?" + k.Selector + "&" + k.Fields }

func (f *followed) take(n kube.News) {
	if f.changed == nil {
		f.changed = map[string]bool{}
	}
	switch {
	case n.Missing != nil:
		f.trouble = fmt.Errorf("%s cannot be read: %w; upgrade the chart, its CustomResourceDefinitions included, or set networkPolicy: \"off\"", f.kind.Name, n.Missing)
		f.refused = f.trouble
	case n.Err != nil:
		f.trouble = n.Err
	case n.All:
		f.trouble, f.refused, f.listed, f.proved = nil, nil, true, f.proved || n.Proved
		have := map[string]bool{}
		for _, o := range n.List {
			have[podgroups.Key(o)] = true
			f.put(o)
		}
		for key := range f.items {
			if !have[key] && n.Proved {
				f.drop(key)
			}
		}
	case n.Event.What == client.Deleted:
		f.drop(podgroups.Key(n.Event.Object))
	case n.Event.Object != nil:
		f.put(n.Event.Object)
	}
}

func (f *followed) put(o api.Object) {
	key := podgroups.Key(o)
	if old := f.items[key]; old != nil && old.Metadata().UID == o.Metadata().UID && old.Metadata().ResourceVersion == o.Metadata().ResourceVersion {
		return
	}
	f.items[key], f.changed[key] = o, true
}

func (f *followed) drop(key string) {
	delete(f.items, key)
	f.changed[key] = true
}

// feed gives what changed to p.
func (f *followed) feed(p *podgroups.Peers) {
	for key := range f.changed {
		p.Set(f.kind, key, f.items[key])
	}
	clear(f.changed)
}

// errWaits and errUnproved are no trouble before they last: an answer is on its way, or its proof.
var (
	errWaits    = errors.New("not read yet")
	errUnproved = errors.New("nothing proves that this is current")
)

// usable says why what was read, nil for nothing, does not count; without rules in force it also counts where nothing proves it.
func (f *followed) usable(unproved bool) error {
	switch {
	case f == nil:
		return errWaits
	case f.listed && (f.proved || unproved):
		return nil // what breaks later takes nothing back
	case f.trouble != nil:
		return f.trouble
	}
	if f.listed {
		return fmt.Errorf("%s were read, and %w: an edge's cache may answer without the cloud", f.kind.Name, errUnproved)
	}
	return errWaits
}

// each are the objects of one type.
func each[T api.Object](f *followed) map[string]T {
	out := map[string]T{}
	if f == nil {
		return out
	}
	for key, o := range f.items {
		if t, ok := o.(T); ok {
			out[key] = t
		}
	}
	return out
}
