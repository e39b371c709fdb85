package kube

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/keep"
	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
)

// loop is one life of a Source: it takes what reflectors and registrar hear into
// known, and hands out a State when that changes it.
type loop struct {
	*known
	tune        tuning
	onState     func(mesh.State)
	onErr       func(error)
	follow      func(api.Kind) // starts a reflector
	want        chan want      // to the registrar, latest; nil without one
	annotations *atomic.Pointer[map[string]string]

	began   time.Time
	problem error // of the registrar
	asked   bool  // for new lists, since the own MeshNode is there
	follows bool  // other plugins' kinds
}

// registered is the outcome of the registrar's last round.
type registered struct{ err error }

// run handles messages until ctx ends.
func (l *loop) run(ctx context.Context, in <-chan any) {
	l.began = time.Now()
	settled := time.NewTimer(0)
	defer settled.Stop()
	waiting := true
	// Without a snapshot the proof may never come (a cache that cannot rehearse).
	patience := time.NewTimer(l.tune.hearsay)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-in:
			if l.take(m) && !waiting {
				settled.Reset(l.tune.settle)
				waiting = true
			}
		case <-patience.C:
			l.update()
		case <-settled.C:
			waiting = false
			l.update()
		}
	}
}

// take notes one message. It reports whether update has something to do.
func (l *loop) take(m any) bool {
	switch m := m.(type) {
	case listed:
		return l.takeList(m)
	case event:
		return l.takeEvent(m)
	case trouble:
		// The first of its kind stands for the rest, which differ in ports and times.
		old := l.troubles[m.kind.Name]
		if (old == nil) == (m.err == nil) && apierrors.ReasonForError(old) == apierrors.ReasonForError(m.err) {
			return false
		}
		l.troubles[m.kind.Name] = m.err
		return true
	case registered:
		l.problem = m.err
		return true
	}
	return false
}

// update derives the State and hands it out if it is complete and new.
func (l *loop) update() {
	if !l.allListed() {
		l.report(l.problem, l.trouble())
		return
	}
	l.followPlugins()
	o := l.objects(l.pluginTrouble())
	state, present, problems := l.derive(o)
	l.tellRegistrar(o, state, present[l.cfg.NodeName])

	err := l.incomplete(state, present[l.cfg.NodeName], !l.have && time.Since(l.began) < l.tune.hearsay)
	if err == nil {
		err = state.Validate()
	}
	if err == nil {
		if !l.have || !reflect.DeepEqual(state, l.last) {
			l.accept(state)
			l.onState(state)
		} else if l.allProved() {
			l.save(false)
		}
		if len(problems) > 0 {
			err = errors.New(strings.Join(problems, "\n"))
		}
	}
	l.report(err, l.absent(present), l.problem, l.trouble())
}

// followPlugins begins to follow other plugins' kinds once a node needs them, and
// shows the own Node's annotations to Annotations.
func (l *loop) followPlugins() {
	if n := l.node(l.cfg.NodeName); n != nil {
		l.annotations.Store(&n.Meta.Annotations)
	}
	if l.follows || !l.anyKept() {
		return
	}
	l.follows = true
	for _, k := range keep.Kinds() {
		l.follow(k)
	}
}

// pluginTrouble says whether a kind of another plugin cannot be followed.
func (l *loop) pluginTrouble() bool {
	for name := range l.plugins {
		if l.troubles[name] != nil {
			return true
		}
	}
	return false
}

// trouble is what keeps a kind from being followed; others mostly have the same cause.
func (l *loop) trouble() error {
	for _, name := range sortedKeys(l.troubles) {
		if err := l.troubles[name]; err != nil {
			return err
		}
	}
	return nil
}

// report tells a problem once; when it has gone, the State once more.
func (l *loop) report(errs ...error) {
	err, text := errors.Join(errs...), ""
	if err != nil {
		text = err.Error()
	}
	if text == l.told {
		return
	}
	l.told = text
	switch {
	case err != nil:
		l.onErr(err)
	case l.have:
		l.onState(l.last)
	}
}

// tellRegistrar passes on what is known about this node.
func (l *loop) tellRegistrar(o objects, state mesh.State, self mesh.Node) {
	if l.want == nil {
		return
	}
	w := l.registration(o, state, self)
	latest(l.want, w)
	// Before the own MeshNode was there, nothing could be proved.
	if there := w.mesh != nil; there != l.asked {
		l.asked = there
		if there {
			l.relistUnproved()
		}
	}
}
