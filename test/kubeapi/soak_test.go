package kubeapi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// rough is a cache that fails in the ways caches do.
type rough struct {
	next http.Handler

	mu    sync.Mutex
	fault string        // "" is none
	ends  chan struct{} // closed to end the watches
	hit   map[string]int
}

// The faults. Watch ends and restarts also last for a moment only.
const (
	noAnswer     = "no answer" // connections are accepted and closed: the cache restarts
	unauthorized = "401"
	emptyLists   = "empty lists" // 200 with no items, and writes fail: no uplink, and nothing stored
	watchEnds    = "watch ends"
)

// set begins a fault, or ends it with "".
func (r *rough) set(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
	if fault == watchEnds || fault == noAnswer {
		close(r.ends)
		r.ends = make(chan struct{})
	}
}

// begin is the fault for a request, and what ends it.
func (r *rough) begin(watch bool) (fault string, ends <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != "" && (watch || r.fault != watchEnds) {
		r.hit[r.fault]++
	}
	return r.fault, r.ends
}

func (r *rough) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	watch := q.URL.Query().Get("watch") != ""
	fault, ends := r.begin(watch)
	plural := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	kind := map[string]string{"nodes": "Node", "meshnodes": "MeshNode", "podblocks": "PodBlock", "podnetworks": "PodNetwork"}[plural]
	switch {
	case fault == noAnswer:
		panic(http.ErrAbortHandler)
	case fault == unauthorized:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","reason":"Unauthorized","code":401}`)
	case fault == emptyLists && q.Method != http.MethodGet:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"kind":"Status","status":"Failure","code":500,"message":"no connection to the cloud"}`)
	case fault == emptyLists && kind != "" && !watch:
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":""},"items":[]}`, kind)
	case watch:
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		go func() {
			select {
			case <-ends:
				cancel()
			case <-ctx.Done():
			}
		}()
		r.next.ServeHTTP(w, q.WithContext(ctx))
	default:
		r.next.ServeHTTP(w, q)
	}
}

// Watches that end, empty lists, restarts and 401s, one after another, while members come and go: no member that is there
// is ever lost, and in the end the agent knows just who is there. EDGEMESH_SOAK is how long, 20 s by default.
func TestSoak(t *testing.T) {
	t.Parallel()
	long := 20 * time.Second
	if text := os.Getenv("EDGEMESH_SOAK"); text != "" {
		var err error
		long, err = time.ParseDuration(text)
		must(t, err)
	}
	habits := []kubeapi.Habits{kubeapi.MetaServer, kubeapi.YurtHub}
	for _, h := range habits {
		t.Run(string(h), func(t *testing.T) { soak(t, h, long/time.Duration(len(habits))) })
	}
}

func soak(t *testing.T, habits kubeapi.Habits, long time.Duration) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("edge", "10.244.0.0/24"))
	var stay []string
	for i := range 5 {
		stay = append(stay, fmt.Sprintf("stays%d=10.244.%d.0/24", i, 10+i))
		must(t, c.CreateMember(fmt.Sprintf("stays%d", i), newPeerID(t), fmt.Sprintf("10.244.%d.0/24", 10+i)))
	}
	cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
	must(t, err)
	cache, err := c.NewEdgeCache(habits, cert)
	must(t, err)
	t.Cleanup(cache.Close)
	r := &rough{next: cache, ends: make(chan struct{}), hit: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(func() { r.set(noAnswer); server.CloseClientConnections(); server.Close() })
	edge := newAgent(t, "edge", "")
	edge.cfg.Server = server.URL
	edge.start()
	expect := func(more ...string) string {
		all := slices.Concat([]string{"edge=10.244.0.0/24"}, stay, more)
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	edge.sees(expect())

	// Members come and go all the time.
	faults := []string{watchEnds, emptyLists, noAnswer, unauthorized}
	random := rand.New(rand.NewPCG(1, 2))
	pause := func() { time.Sleep(200*time.Millisecond + time.Duration(random.Int64N(int64(time.Second)))) } // sleep: members come and go at some rate
	rounds := 0
	for end := time.Now().Add(long); time.Now().Before(end); rounds++ {
		name := fmt.Sprintf("guest%d", rounds%8)
		if rounds >= 4 {
			old := fmt.Sprintf("guest%d", (rounds-4)%8)
			must(t, c.Delete("/api/v1/nodes/"+old), c.Delete(kubeapi.Group+"meshnodes/"+old))
		}
		must(t, c.CreateMember(name, newPeerID(t), fmt.Sprintf("10.244.%d.0/24", 100+rounds%8)))
		r.set(faults[random.IntN(len(faults))])
		pause()
		r.set("")
		pause()
	}
	var guests []string
	for i := max(0, rounds-4); i < rounds; i++ {
		guests = append(guests, fmt.Sprintf("guest%d=10.244.%d.0/24", i%8, 100+i%8))
	}
	took := fair.Eventually(t, patience, "all are known, and nobody else", func() error {
		if got, want := edge.members(), expect(guests...); got != want {
			return fmt.Errorf("the agent knows %s, want %s", got, want)
		}
		return nil
	})
	for i := range stay {
		if name, _, _ := strings.Cut(stay[i], "="); edge.blip(name) {
			t.Errorf("%s was lost for a while", name)
		}
	}
	if edge.blip("edge") {
		t.Error("the agent lost itself")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range faults {
		if r.hit[f] == 0 && rounds > 20 {
			t.Errorf("no request met the fault %q", f)
		}
	}
	t.Logf("%s: %v, %d rounds, requests that met a fault %v, %d memberships; right %.1f s after the last fault", habits, long, rounds, r.hit, edge.seen(), took.Seconds())
}
