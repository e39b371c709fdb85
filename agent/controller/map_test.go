package controller

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/agent/observe"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/admission/enroll"
)

// mapAPI has MeshNodes, Nodes, and a status that is patched.
type mapAPI struct {
	cluster
	list map[string][]api.Object

	mu      sync.Mutex
	watched []string // as written
	made    *secret
}

func (f *mapAPI) List(_ context.Context, k api.Kind, _ func(api.Object)) ([]api.Object, string, error) {
	return f.list[k.Name], "1", nil
}

func (f *mapAPI) Watch(ctx context.Context, _ api.Kind, _ string, _ int, _ func(api.Object)) (*client.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (f *mapAPI) Get(_ context.Context, _ string, out any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made == nil {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: mapSecret + " not found"}}
	}
	*out.(*secret) = *f.made
	return nil
}

func (f *mapAPI) Create(_ context.Context, _ string, in, out any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := in.(secret)
	f.made, *out.(*secret) = &s, s
	return nil
}

func (f *mapAPI) Patch(_ context.Context, _, _ string, _ url.Values, in, _ any) error {
	b, err := json.Marshal(in)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watched = append(f.watched, string(b))
	return err
}

func (f *mapAPI) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watched
}

// nobody visits.
type nobody struct{}

func (nobody) Here(mesh.PeerID) bool { return false }
func (nobody) Open(context.Context, mesh.PeerID) (observe.Stream, error) {
	return nil, errors.New("not here")
}
func (nobody) SendAway(mesh.PeerID) {}

// Members learn immediately that a page is open, again before that ends, and that it was closed a while after.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &mapAPI{}
		w := &liveMap{api: f, members: nobody{}, log: slog.New(slog.DiscardHandler)}
		w.pages.Store(1)
		ended := make(chan struct{})
		go func() { w.announce(t.Context()); close(ended) }()
		time.Sleep(time.Second)
		if n := len(f.told()); n != 1 {
			t.Fatalf("told %d times", n)
		}
		time.Sleep(10*time.Minute + time.Second/2) // between two looks
		if n := len(f.told()); n < 5 || n > 7 {
			t.Errorf("told %d times in 10 minutes: %v", n, f.told())
		}
		w.pages.Store(0)
		began := time.Now()
		<-ended
		if all := f.told(); !strings.HasSuffix(all[len(all)-1], `"watched":null}}`) || time.Since(began) < watchOn-time.Second {
			t.Errorf("%v after the last page was closed: %v", time.Since(began), all)
		}
	})
}

// Of two MeshNodes with one peer ID the first one's name holds; what is no peer ID is nobody's.
func TestNamed(t *testing.T) {
	id := kubetest.PeerIDs(t, 2)
	nodes := map[string]api.Object{"edge-1": kubetest.Node("edge-1", 1)}
	nodes["edge-1"].Metadata().Labels = map[string]string{mesh.SiteLabel: "oslo"}
	got := named(map[string]api.Object{
		"edge-1": kubetest.Aged(1, kubetest.MeshNode("edge-1", id[0])), "a-thief": kubetest.Aged(2, kubetest.MeshNode("a-thief", id[0])),
		"edge-2": kubetest.MeshNode("edge-2", id[1]), "rubbish": kubetest.MeshNode("rubbish", "x\x1b"),
	}, nodes)
	if len(got) != 2 || got[mesh.PeerID(id[0])].Name != "edge-1" || got[mesh.PeerID(id[0])].Site != "oslo" || got[mesh.PeerID(id[1])].Name != "edge-2" {
		t.Errorf("%v", got)
	}
}

// A map's page is on the loopback.
func TestCheckMap(t *testing.T) {
	for address, good := range map[string]bool{"127.0.0.1:9475": true, "[::1]:9475": true, ":9475": false, "0.0.0.0:9475": false, "10.0.0.1:9475": false, "x": false, "localhost:1": false} {
		if err := CheckMap(address); (err == nil) != good || err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// With a relay, a controller and members: a page shows who visits and is registered, whatever others send; without the token
// it shows nothing.
func TestLiveMap(t *testing.T) {
	relay, info := relaytest.Loopback(t)
	log := slog.New(slog.DiscardHandler)
	ckey, cid := keytest.New(t)
	relay.Knows(cid)
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	c, err := enroll.NewController(ckey, nil, true, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held := make(chan struct{})
	var once sync.Once
	all.Go(func() {
		c.Run(ctx, func() []peer.AddrInfo { return []peer.AddrInfo{info} }, func(n int) {
			if n == 1 {
				once.Do(func() { close(held) })
			}
		})
	})
	f := &mapAPI{list: map[string][]api.Object{}}
	way := enroll.Via{Relays: []peer.AddrInfo{info}, Controllers: []peer.ID{cid}}
	comes := func(name string, registered bool, serve func(peer.ID, enroll.Stream)) {
		key, id := keytest.New(t)
		if registered {
			f.list["meshnodes"] = append(f.list["meshnodes"], kubetest.MeshNode(name, id.String()))
		}
		all.Go(func() { visits(ctx, key, way, serve) })
	}
	answers := func(observers ...mesh.PeerID) func(peer.ID, enroll.Stream) {
		a := observe.NewAnswerer(ctx, func() observe.Report { return observe.Report{Version: "1.2.3<b>"} },
			func(id mesh.PeerID) bool { return len(observers) > 0 && id == observers[0] }, log)
		return func(id peer.ID, s enroll.Stream) { a.Answer(mesh.PeerID(id.String()), s) }
	}
	<-held
	comes("good", true, answers(mesh.PeerID(cid.String())))
	comes("refuses", true, answers())
	comes("floods", true, func(_ peer.ID, s enroll.Stream) {
		defer s.Reset()
		_, _ = s.Write(append([]byte{6, 64, 0, 0}, make([]byte, 100<<20)...))
	})
	comes("stranger", false, func(peer.ID, enroll.Stream) { t.Error("a stranger was asked") })
	f.list["meshnodes"] = append(f.list["meshnodes"], kubetest.MeshNode("away", kubetest.PeerIDs(t, 1)[0]))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	w := &liveMap{api: f, address: address, namespace: "n", members: guests{c}, log: log}
	all.Go(func() { w.run(ctx) })
	get := func(token string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		return http.DefaultClient.Do(r)
	}
	fair.Eventually(t, time.Minute, "the page requires a token", fair.True(func() bool {
		resp, err := get("wrong")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusUnauthorized
	}))
	if n := len(f.told()); n != 0 {
		t.Errorf("members were notified %d times without a page", n)
	}
	resp, err := get(string(f.made.Data[tokenEntry]))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	seen := map[string]bool{"good is well": false, "refuses": false, "floods": false}
	stop := context.AfterFunc(ctx, func() { resp.Body.Close() })
	defer stop()
	watchdog := time.AfterFunc(2*time.Minute, func() { resp.Body.Close() })
	defer watchdog.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && (!seen["good is well"] || !seen["refuses"] || !seen["floods"]) {
		var news struct {
			Nodes []struct{ ID, State, Version, Why string }
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if err := json.Unmarshal([]byte(data), &news); err != nil {
			t.Fatal(err)
		}
		for _, n := range news.Nodes {
			switch {
			case n.ID == "good" && n.State == "well" && n.Version == "1.2.3<b>":
				seen["good is well"] = true
			case n.ID == "refuses" && strings.Contains(n.Why, "only observers"), n.ID == "floods" && strings.Contains(n.Why, "too long"):
				seen[n.ID] = true
			case n.ID == "stranger", n.ID == "away" && n.State != "unasked":
				t.Errorf("%+v", n)
			}
		}
	}
	for what, ok := range seen {
		if !ok {
			t.Errorf("never seen: %s", what)
		}
	}
	if all := f.told(); len(all) != 1 || !strings.Contains(all[0], `"watched":"2`) {
		t.Errorf("members were notified of %v", all)
	}
}

func visits(ctx context.Context, key crypto.PrivKey, way enroll.Via, serve func(peer.ID, enroll.Stream)) {
	for ctx.Err() == nil {
		_ = enroll.Visit(ctx, key, way, serve)
	}
}
