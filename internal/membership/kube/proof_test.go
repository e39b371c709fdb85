package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestProofsAreShared has every kind ask for a proof at the same time, as at a start: the API server is asked once, and for the
// cluster's identity not again as long as this node's MeshNode is the same object.
func TestProofsAreShared(t *testing.T) {
	var mu sync.Mutex
	asked, uid, cluster := map[string]int{}, "1", "c"
	r, _ := testRegistrar(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[req.Method+" "+req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]]++
		switch {
		case req.Method == http.MethodPatch:
			body := make([]byte, req.ContentLength)
			_, _ = req.Body.Read(body)
			fmt.Fprint(w, strings.Replace(string(body), `"metadata":{`, fmt.Sprintf(`"metadata":{"name":"a","uid":%q,`, uid), 1))
		case strings.HasSuffix(req.URL.Path, "kube-system"):
			fmt.Fprintf(w, `{"metadata":{"uid":%q}}`, cluster)
		default:
			fmt.Fprint(w, `{"kind":"PodNetworkList","metadata":{"resourceVersion":"9"},"items":[]}`)
		}
	}), false)
	p := &prover{c: r.client, node: "a", gather: 500 * time.Millisecond}
	all := func(want string) {
		t.Helper()
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 5 {
			wg.Go(func() {
				<-begin
				if got, err := p.prove(t.Context()); err != nil || got.cluster != want {
					t.Errorf("got %+v, %v; want cluster %s", got, err, want)
				}
			})
		}
		close(begin)
		wg.Wait()
	}
	counts := func(dry, identities, lists int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if asked["PATCH a"] != dry || asked["GET kube-system"] != identities || asked["GET podnetworks"] != lists {
			t.Errorf("asked %v; want %d dry runs, %d identities, %d lists", asked, dry, identities, lists)
		}
	}
	all("c")
	counts(1, 1, 1)
	all("c")
	counts(2, 1, 2)
	mu.Lock()
	uid, cluster = "2", "d" // made again, in another cluster
	mu.Unlock()
	all("d")
	counts(3, 2, 3)
}
