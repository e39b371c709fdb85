package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// loop is one run of a Source: it brings what reflectors and registrar receive into
// known, and hands out a State when that changes.
type loop struct {
	known       *known
	tune        tuning
	onState     func(mesh.State)
	onErr       func(error)
	source      steering
	want        chan want // to the registrar, latest; nil without one
	annotations *atomic.Pointer[map[string]string]

	began    time.Time
	problem  error  // of the registrar
	named    func() // called when the API has named this node's blocks
	reports  *reports
	relisted bool                 // since this node's MeshNode is there
	follows  bool                 // other plugins' kinds
	hoards   map[string]time.Time // nodes that claimed too many blocks, and when they last had them
}

// reports is what callers know of what is wrong. It outlives a run: what Start reported, Watch does not repeat.
type reports struct {
	troubles map[string]error // of the reflectors, by plural
	last     string           // reported last, "" when all is well
}

// steering is which of Nodes and NodeRecords are followed.
type steering struct {
	follow func(api.Kind) (stop func()) // starts a reflector of any kind
	stops  map[string]func()            // of their reflectors that run, by plural
	lease  chan string                  // to the lessor, latest: whose renewal says that a controller keeps the NodeRecords
	named  string                       // that Lease
	kept   bool                         // they are kept

	refusals int       // of a list of Nodes, since one was answered
	refused  time.Time // the first of them

	differs  bool                       // the controller's membership is another one, at the last look
	relisted time.Time                  // when everything was listed for that
	agreed   *atomic.Pointer[time.Time] // when it was this node's last; nil: nobody asks

	depends wake.One // an object came without a NodeRecord to it, or one went: does the controller live?
}

// A refusal lasts after refusedOften answers over refusedLong: an API server that has just started, or a chart half applied, refuses as well.
const (
	refusedOften = 3
	refusedLong  = time.Minute
)

// answered takes what became of a list or a watch of Nodes.
func (s *steering) answered(m trouble) {
	switch {
	case m.err == nil:
		s.refusals = 0
	case m.refused:
		if s.refusals++; s.refusals == 1 {
			s.refused = time.Now()
		}
	}
}

func (s *steering) lasts() bool {
	return s.refusals >= refusedOften && time.Since(s.refused) >= refusedLong
}

// forbidden reports whether NodeRecords have to stand for Nodes, which may not be listed.
func (s *steering) forbidden() bool { return s.named != "" && s.refusals > 0 && (s.kept || s.lasts()) }

// hoardTold is how long a node is named that claimed too many blocks: these come and go, for the controller deletes them.
const hoardTold = time.Minute

// run handles messages until ctx ends.
func (l *loop) run(ctx context.Context, in <-chan any) {
	l.began = time.Now()
	l.steer()
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
			news := l.take(m)
			l.steer()
			if news && !waiting {
				debounced.Reset(l.tune.debounce)
				waiting = true
			}
		case <-patience.C:
			l.update()
		case <-debounced.C:
			waiting = false
			l.update()
			if len(l.hoards) > 0 {
				debounced.Reset(hoardTold)
			}
		}
	}
}

// take handles one message. It reports whether update has something to do.
func (l *loop) take(m any) bool {
	switch m := m.(type) {
	case listed:
		if m.kind.Name == api.Nodes().Name {
			l.source.refusals = 0
		}
		return l.known.takeList(m)
	case event:
		news := l.known.takeEvent(m)
		if l.depends(m) {
			l.source.depends.Wake()
		}
		return news
	case trouble:
		if m.kind.Name == api.Nodes().Name {
			l.source.answered(m)
		}
		if isNodes(m.kind) && m.kind.Name != l.known.feed.kind().Name {
			l.known.cfg.Log.Debug("cannot follow a kind that is not in force", "kind", m.kind.Name, "err", m.err)
			return false
		}
		// The first error of a kind stands for the rest, which differ in ports and times.
		old := l.reports.troubles[m.kind.Name]
		if (old == nil) == (m.err == nil) && !m.refused && apierrors.ReasonForError(old) == apierrors.ReasonForError(m.err) {
			return false
		}
		l.reports.troubles[m.kind.Name] = m.err
		return true
	case registered:
		// What one round came to is no reason for another.
		old := l.problem
		l.problem = m.err
		return (old == nil) != (m.err == nil) || old != nil && old.Error() != m.err.Error()
	case vouched:
		return l.known.takeVouched(m)
	case kept:
		if l.source.kept = bool(m); !l.source.kept && l.source.agreed != nil {
			l.source.agreed.Store(nil)
		}
	case theirs:
		if l.source.agreed != nil {
			l.compare(string(m))
		}
	}
	return false
}

// compare takes the digest of the membership as a controller has it: where another look finds a difference as well, a watch has lost something.
func (l *loop) compare(theirs string) {
	src := &l.source
	switch own := l.known.last.Digest(); {
	case theirs == own:
		now := time.Now()
		src.differs = false
		src.agreed.Store(&now)
	case theirs == "":
		src.agreed.Store(nil)
	case !src.differs:
		src.agreed.Store(nil)
		src.differs = true
		src.depends.Wake() // looks again in a moment: an event may be under way
	default:
		if src.differs = false; time.Since(src.relisted) < keptEvery { // a list did not end it
			return
		}
		src.relisted = time.Now()
		l.known.cfg.Log.Info("the controller has another membership than this node: everything is listed again", "own", own, "controller", theirs)
		l.known.relistAll()
	}
}

// depends reports whether an event raises the question if a controller lives: something came or went whose NodeRecord should follow.
// What a known member reports of itself does not.
func (l *loop) depends(e event) bool {
	if e.kind.Name == "meshnodes" && e.what != deleted {
		return l.known.node(e.obj.Metadata().Name) == nil
	}
	return !isNodes(e.kind) && e.what != modified
}

// steer follows NodeRecords while a controller keeps them, otherwise Nodes; both until the one may take over from the other.
func (l *loop) steer() {
	src := &l.source
	if n := find[*api.PodNetwork](l.known.stores["podnetworks"], api.NetworkName); n != nil && n.Status.RecordsLease != src.named {
		src.named = n.Status.RecordsLease
		wake.Latest(src.lease, src.named)
	}
	if src.forbidden() && l.known.feed.refuse(src.kept) {
		src.refusals = 0
		delete(l.reports.troubles, api.Nodes().Name)
		l.known.relist(api.NodeRecords().Name)
	}
	wants := l.known.feed.follows(src.kept)
	for _, k := range []api.Kind{api.Nodes(), api.NodeRecords()} {
		stop := src.stops[k.Name]
		switch {
		case wants[k.Name] && stop == nil:
			src.stops[k.Name] = src.follow(k)
		case !wants[k.Name] && stop != nil:
			stop()
			delete(src.stops, k.Name)
			delete(l.reports.troubles, k.Name)
		}
	}
}

// update derives the State and hands it out if it is complete and new.
func (l *loop) update() {
	if !l.known.allListed() {
		l.report(l.problem, l.trouble())
		return
	}
	l.followPlugins()
	o := l.known.objects(l.pluginTrouble())
	state, present, problems := l.known.derive(o)
	problems = append(problems, l.hoarders(o.blocks, state.PodCIDRs)...)
	l.informRegistrar(o, state, present[l.known.cfg.NodeName])

	err := l.known.incomplete(state, present[l.known.cfg.NodeName], !l.known.have && time.Since(l.began) < l.tune.patience)
	if err == nil {
		err = state.Validate()
		mesh.Share(l.known.last.Nodes, state.Nodes)
	}
	if err == nil {
		if !l.known.have || !reflect.DeepEqual(state, l.known.last) {
			l.known.accept(state)
			l.onState(state)
		} else if l.known.allProved() {
			l.known.save(false)
		}
		if len(problems) > 0 {
			err = errors.New(strings.Join(problems, "\n"))
		}
	}
	absent := l.known.absent(present)
	if absent == nil {
		l.named()
	}
	l.report(err, absent, l.problem, l.trouble())
}

// hoarders names the nodes that claimed more blocks than count.
func (l *loop) hoarders(blocks []*api.PodBlock, ranges []netip.Prefix) (problems []string) {
	now := time.Now()
	if l.hoards == nil {
		l.hoards = map[string]time.Time{}
	}
	_, surplus := SplitBlocks(blocks, ranges)
	for _, name := range Hoarders(surplus) {
		l.hoards[name] = now
	}
	for _, name := range sortedKeys(l.hoards) {
		if now.Sub(l.hoards[name]) >= hoardTold {
			delete(l.hoards, name)
			continue
		}
		problems = append(problems, fmt.Sprintf("Node %s claims more PodBlocks than the %d of each IP version that count; the others give it no addresses, and the controller "+
			"deletes them. A node needs one: check who uses its credentials, and ban it (banned in the PodNetwork)", name, MostBlocks))
	}
	return problems
}

// followPlugins starts to follow other plugins' kinds once a node needs them, and hands
// the annotations of this node's Node to Annotations.
func (l *loop) followPlugins() {
	if n := l.known.feed.whole(l.known.node(l.known.cfg.NodeName)); n != nil {
		l.annotations.Store(&n.Meta.Annotations)
	}
	if l.follows || !l.known.anyKept() {
		return
	}
	l.follows = true
	for _, k := range keep.Kinds() {
		l.source.follow(k) // until the end
	}
}

// pluginTrouble reports whether a kind of another plugin cannot be followed.
func (l *loop) pluginTrouble() bool {
	for name := range l.known.plugins {
		if l.reports.troubles[name] != nil {
			return true
		}
	}
	return false
}

// trouble is why some kind cannot be followed; for the others the cause is mostly the same.
func (l *loop) trouble() error {
	for _, name := range sortedKeys(l.reports.troubles) {
		if src := &l.source; name == api.Nodes().Name && src.refusals > 0 && (!l.known.stores["podnetworks"].listed || src.named != "" && !src.lasts()) {
			continue // that one says whether there are NodeRecords, and a refusal may pass
		}
		if err := l.reports.troubles[name]; err != nil {
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
	if text == l.reports.last {
		return
	}
	l.reports.last = text
	switch {
	case err != nil:
		l.onErr(err)
	case l.known.have:
		l.onState(l.known.last)
	}
}

// informRegistrar passes on what is known about this node.
func (l *loop) informRegistrar(o objects, state mesh.State, self mesh.Node) {
	if l.want == nil {
		return
	}
	w := l.known.registration(o, state, self)
	wake.Latest(l.want, w)
	// Before this node's MeshNode was there, nothing could be proved.
	if there := w.mesh != nil; there != l.relisted {
		l.relisted = there
		if there {
			l.known.relistUnproved()
		}
	}
}
