package kube

import (
	"maps"
	"slices"
	"strings"

	"edgemesh/agent/kube/api"
)

// takeList takes a list, and notices when the API has another history than the
// one that is known.
func (l *loop) takeList(m listed) bool {
	st := l.store(m.kind)
	if m.missing != nil {
		return st.miss(m.missing)
	}
	if m.proof == nil {
		l.cfg.Log.Debug("list may be stale: absence is not believed", "kind", m.kind.name, "items", len(m.items), "reason", m.reason)
		l.keepSelf()
		return st.setList(m.items, m.rv, false)
	}
	l.cfg.Log.Debug("list is proved", "kind", m.kind.name, "items", len(m.items), "version", m.rv)
	switch {
	case l.cluster == "":
		l.cluster = m.proof.cluster
	case l.cluster != m.proof.cluster, m.rv < st.floor:
		l.newHistory(m)
	}
	return st.setList(m.items, m.rv, true)
}

// keepSelf keeps this node a member while its own objects are mended.
func (l *loop) keepSelf() {
	for _, n := range l.last.Nodes {
		if n.Name == l.cfg.NodeName {
			l.kept[n.Name] = keptMember{n, true}
		}
	}
}

// newHistory starts over: the API's data was lost, restored from a backup, or is
// another cluster's. Nobody leaves because of that.
func (l *loop) newHistory(m listed) {
	l.cfg.Log.Warn("the API has another history than before; members it does not list are kept, see "+api.ForgetAnnotation,
		"cluster", m.proof.cluster, "before", l.cluster, "version", m.rv, "known", l.store(m.kind).floor)
	l.cluster = m.proof.cluster
	l.keep(func(string) bool { return true })
	for _, all := range []map[string]*store{l.stores, l.plugins} {
		for name, st := range all {
			st.forget()
			if name != m.kind.name {
				l.askList(name)
			}
		}
	}
}

func (l *loop) askList(name string) {
	select {
	case l.relist[name] <- struct{}{}:
	default: // is asked already
	}
}

// release lets go of members whose absence is proved by now, or allowed by the
// administrator.
func (l *loop) release(n *api.PodNetwork) {
	if !l.allProved() {
		return
	}
	maps.DeleteFunc(l.kept, func(_ string, m keptMember) bool { return !m.retained })
	if n == nil {
		return
	}
	for _, name := range strings.Split(n.Meta.Annotations[api.ForgetAnnotation], ",") {
		switch name = strings.TrimSpace(name); name {
		case "":
		case "*":
			clear(l.kept)
		default:
			delete(l.kept, name)
		}
	}
}

// remember keeps over a restart in which history the snapshot stands: with a new
// State, or when cluster, retained members or the objects they stand on changed. Versions alone are no reason,
// flash wears.
func (l *loop) remember(always bool) {
	m := memory{Cluster: l.cluster, Versions: map[string]uint64{}, Objects: l.ids}
	for name, st := range l.stores {
		if st.floor > 0 {
			m.Versions[name] = st.floor
		}
	}
	for _, name := range sortedKeys(l.kept) {
		if l.kept[name].retained {
			m.Retained = append(m.Retained, name)
		}
	}
	if !always && m.Cluster == l.saved.Cluster && slices.Equal(m.Retained, l.saved.Retained) && maps.Equal(m.Objects, l.saved.Objects) {
		return
	}
	if err := m.save(l.cfg.StateDir); err != nil {
		l.cfg.Log.Error("after a restart it will not be known which removals are proved", "err", err)
		return
	}
	l.saved = m
}
