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

// loop is one run of a Source: it brings what reflectors and registrar receive into
// known, and hands out a State when that changes.
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
	asked   bool  // for new lists, since this node's MeshNode is there
	follows bool  // other plugins' kinds
}

// registered is the outcome of the registrar's last round.
type registered struct{ err error }

// run handles messages until ctx ends.
func (l *loop) run(ctx context.Context, in <-chan any) {
	l.began = time.Now()
	debounced := time.NewTimer(0)
	defer debounced.Stop()
	waiting := true
	// Without a snapshot the proof may never come: some caches cannot do dry runs.
	patience := time.NewTimer(l.tune.patience)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-in:
			if l.take(m) && !waiting {
				debounced.Reset(l.tune.debounce)
				waiting = true
			}
		case <-patience.C:
			l.update()
		case <-debounced.C:
			waiting = false
			l.update()
		}
	}
}

// take handles one message. It reports whether update has something to do.
func (l *loop) take(m any) bool {
	switch m := m.(type) {
	case listed:
		return l.takeList(m)
	case event:
		return l.takeEvent(m)
	case trouble:
		// The first error of a kind stands for the rest, which differ in ports and times.
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
	l.informRegistrar(o, state, present[l.cfg.NodeName])

	err := l.incomplete(state, present[l.cfg.NodeName], !l.have && time.Since(l.began) < l.tune.patience)
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

// followPlugins starts to follow other plugins' kinds once a node needs them, and hands
// the annotations of this node's Node to Annotations.
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

// pluginTrouble reports whether a kind of another plugin cannot be followed.
func (l *loop) pluginTrouble() bool {
	for name := range l.plugins {
		if l.troubles[name] != nil {
			return true
		}
	}
	return false
}

// trouble is why some kind cannot be followed; for the others the cause is mostly the same.
func (l *loop) trouble() error {
	for _, name := range sortedKeys(l.troubles) {
		if err := l.troubles[name]; err != nil {
			return err
		}
	}
	return nil
}

// report reports a problem once, and after its end the State once more.
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

// informRegistrar passes on what is known about this node.
func (l *loop) informRegistrar(o objects, state mesh.State, self mesh.Node) {
	if l.want == nil {
		return
	}
	w := l.registration(o, state, self)
	latest(l.want, w)
	// Before this node's MeshNode was there, nothing could be proved.
	if there := w.mesh != nil; there != l.asked {
		l.asked = there
		if there {
			l.relistUnproved()
		}
	}
}
