package controller

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/livemap"
	"edgemesh/agent/observe"
	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/admission/enroll"
)

const (
	// mapSecret is the Secret with the token of the map's page, which the first leader makes.
	mapSecret  = "edgemesh-map"
	tokenEntry = "token"
	// watchAhead is how far ahead a map is announced as open, watchRenew when that is renewed. Every agent receives it,
	// so not often.
	watchAhead = 4 * time.Minute
	watchRenew = 2 * time.Minute
	// watchOn is how long members stay after the last page was closed: a page that is loaded again finds them there.
	watchOn = 30 * time.Second
)

// CheckMap refuses addresses for a map on which others than this pod's could listen: its page is HTTP.
func CheckMap(address string) error {
	host, _, err := net.SplitHostPort(address)
	if a, wrong := netip.ParseAddr(host); err != nil || wrong != nil || !a.IsLoopback() {
		return fmt.Errorf("%w: --map %s: must be 127.0.0.1:PORT or [::1]:PORT, which `kubectl port-forward` reaches", ErrConfig, address)
	}
	return nil
}

// visitors are the members that visit this controller.
type visitors interface {
	Here(mesh.PeerID) bool
	Open(context.Context, mesh.PeerID) (observe.Stream, error)
	SendAway(mesh.PeerID)
}

// liveMap is the map in this controller's pod. Members are queried while a page is open.
type liveMap struct {
	api       cluster
	address   string // where the page is
	namespace string // of the Secret with its token
	members   visitors
	log       *slog.Logger

	pages atomic.Int32
	known atomic.Pointer[map[mesh.PeerID]*mesh.Node]
}

// run serves the page until ctx ends.
func (w *liveMap) run(ctx context.Context) {
	for ; ctx.Err() == nil; wake.Sleep(ctx, tryAgain) {
		if err := w.serve(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("no map is served; retrying", "address", w.address, "err", err)
		}
	}
}

func (w *liveMap) serve(ctx context.Context) error {
	token, err := w.token(ctx)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", w.address)
	if err != nil {
		return fmt.Errorf("--map: %w", err)
	}
	defer l.Close()
	w.log.Info("serving the map", "address", l.Addr(), "token", "Secret "+w.namespace+"/"+mapSecret)
	return livemap.Page{Token: token, Source: w.source, Pages: func(n int) { w.pages.Store(int32(n)) }}.Serve(ctx, l)
}

// token reads the page's token, or makes it.
func (w *liveMap) token(ctx context.Context) (string, error) {
	all := "/api/v1/namespaces/" + w.namespace + "/secrets"
	var s secret
	err := w.api.Get(ctx, all+"/"+mapSecret, &s)
	if apierrors.IsNotFound(err) {
		in := secret{Type: api.Type{APIVersion: "v1", Kind: "Secret"}, Meta: api.Meta{Name: mapSecret}, Data: map[string][]byte{tokenEntry: []byte(livemap.NewToken())}}
		err = w.api.Create(ctx, all, in, &s)
	}
	if err != nil {
		return "", fmt.Errorf("the map's token, Secret %s/%s: %w", w.namespace, mapSecret, err)
	}
	token := string(s.Data[tokenEntry])
	if err := livemap.CheckToken(token); err != nil {
		return "", fmt.Errorf("the map's token, Secret %s/%s: %s: %w; delete it to have another one made", w.namespace, mapSecret, tokenEntry, err)
	}
	return token, nil
}

// source is the page's.
func (w *liveMap) source(ctx context.Context, each func(observe.Event) error) error {
	for wake.Sleep(ctx, time.Second) {
		if w.pages.Load() > 0 {
			w.look(ctx, each)
		}
	}
	return nil
}

// look queries members until no page is open.
func (w *liveMap) look(ctx context.Context, each func(observe.Event) error) {
	w.known.Store(&map[mesh.PeerID]*mesh.Node{})
	ctx, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	all.Go(func() { w.follow(ctx) })
	all.Go(func() { w.announce(ctx); end() })
	shown := map[string]observe.Event{}
	_ = observe.Observer{
		Self: func() mesh.Node { return mesh.Node{} }, Own: func() observe.Report { return observe.Report{} }, All: func() bool { return true },
		Members: func() iter.Seq[*mesh.Node] { return maps.Values(*w.known.Load()) },
		Reached: w.members.Here, Open: w.members.Open, Leave: func(mesh.PeerID) {},
	}.Run(ctx, func(e observe.Event) error {
		shown[e.Node] = e
		if e.Gone {
			delete(shown, e.Node)
			w.members.SendAway(mesh.PeerID(e.PeerID))
		}
		return each(e)
	})
	for name, e := range shown { // what they reported no longer holds
		if name != "" {
			_ = each(observe.Event{Node: name, PeerID: e.PeerID, Gone: true})
			w.members.SendAway(mesh.PeerID(e.PeerID))
		}
	}
}

// announce makes members visit until no page has been open for watchOn.
func (w *liveMap) announce(ctx context.Context) {
	var until, last time.Time
	for last = time.Now(); time.Since(last) < watchOn; {
		if w.pages.Load() > 0 {
			last = time.Now()
		}
		if time.Until(until) < watchAhead-watchRenew {
			next := time.Now().Add(watchAhead).UTC().Truncate(time.Second)
			if err := w.state(ctx, &next); err == nil {
				until = next
			} else if ctx.Err() == nil {
				w.log.Warn("cannot announce to members that a map is open; retrying", "err", err)
			}
		}
		if !wake.Sleep(ctx, time.Second) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTime)
	defer cancel()
	_ = w.state(ctx, nil) // else it ends by itself
}

func (w *liveMap) state(ctx context.Context, until *time.Time) error {
	var n api.PodNetwork
	patch := map[string]any{"status": map[string]any{"watched": until}}
	return w.api.Patch(ctx, api.PodNetworks().Path(api.NetworkName)+"/status", client.Merge, nil, patch, &n)
}

// follow keeps the members, as MeshNodes name them, with the sites that their Nodes' labels name.
func (w *liveMap) follow(ctx context.Context) {
	in := make(chan news)
	var readers sync.WaitGroup
	defer readers.Wait()
	objects := map[string]map[string]api.Object{}
	for _, k := range []api.Kind{api.MeshNodes(), api.Nodes()} {
		objects[k.Name] = map[string]api.Object{}
		readers.Go(func() { follow(ctx, w.api, k, nil, in) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			switch o := objects[n.kind.Name]; {
			case n.err != nil:
				w.log.Debug("the map's members cannot be read; retrying", "err", n.err)
				continue
			case n.all:
				clear(o)
				for _, x := range n.list {
					o[x.Metadata().Name] = x
				}
			case n.event.What == client.Deleted:
				delete(o, n.event.Object.Metadata().Name)
			default:
				o[n.event.Object.Metadata().Name] = n.event.Object
			}
		}
		now := named(objects[api.MeshNodes().Name], objects[api.Nodes().Name])
		w.known.Store(&now)
	}
}

// named are the members by peer ID. Of two MeshNodes with one peer ID the first one's name holds, as for agents.
func named(meshNodes, nodes map[string]api.Object) map[mesh.PeerID]*mesh.Node {
	first := slices.SortedFunc(maps.Values(meshNodes), func(a, b api.Object) int { return a.Metadata().Older(b.Metadata()) })
	out := map[mesh.PeerID]*mesh.Node{}
	for _, x := range first {
		m, ok := x.(*api.MeshNode)
		if !ok || out[mesh.PeerID(m.Spec.PeerID)] != nil {
			continue
		}
		if _, err := admit.Decode(mesh.PeerID(m.Spec.PeerID)); err != nil {
			continue
		}
		n := &mesh.Node{Name: m.Meta.Name, PeerID: mesh.PeerID(m.Spec.PeerID)}
		if x := nodes[n.Name]; x != nil {
			n.Site = x.Metadata().Labels[mesh.SiteLabel]
		}
		out[n.PeerID] = n
	}
	return out
}

// guests are the visitors of a controller at its relays.
type guests struct{ *enroll.Controller }

func (g guests) Here(id mesh.PeerID) bool { return g.Controller.Here(admit.ID(id)) }

func (g guests) Open(ctx context.Context, id mesh.PeerID) (observe.Stream, error) {
	s, err := g.Controller.Open(ctx, admit.ID(id))
	if err != nil {
		return nil, err // not an empty stream in the interface
	}
	return s, nil
}

func (g guests) SendAway(id mesh.PeerID) { g.Controller.Disconnect(admit.ID(id)) }
