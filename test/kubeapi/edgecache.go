package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Habits tells edge-local API caches apart, as they were measured.
type Habits string

const (
	// MetaServer of KubeEdge v1.20: lists are not stored; a watch ignores its
	// resource version, replays the local store as ADDED, has no bookmarks and
	// continues offline; what was deleted while no watch heard it stays in the store.
	// Offline, lists are 200 from the store, perhaps empty, and writes 500.
	MetaServer Habits = "metaserver"
	// YurtHub of OpenYurt v1.5: the last answer to each GET is kept. Offline, a
	// create is 201 and stored nowhere, a patch 200 with the old object.
	YurtHub Habits = "yurthub"
)

// EdgeCache stands in for an edge-local cache of the API: plain HTTP without
// credentials, in front of a real API server it may lose.
type EdgeCache struct {
	URL string

	habits Habits
	target string
	http   *http.Client
	server *httptest.Server

	mu      sync.Mutex
	online  bool
	changed chan struct{}                         // closed when online changes
	store   map[string]map[string]json.RawMessage // MetaServer: by collection path, name
	answers map[string]json.RawMessage            // YurtHub: by path
	lies    int                                   // writes acknowledged and dropped
	Watched map[string]int                        // watches begun, by collection path
}

// NewEdgeCache starts a cache that acts as the holder of a certificate.
func (c *Cluster) NewEdgeCache(habits Habits, cert string) (*EdgeCache, error) {
	h, err := c.httpClient(cert)
	if err != nil {
		return nil, err
	}
	e := &EdgeCache{
		habits: habits, target: c.URL, http: h, online: true, changed: make(chan struct{}),
		store: map[string]map[string]json.RawMessage{}, answers: map[string]json.RawMessage{},
		Watched: map[string]int{},
	}
	e.server = httptest.NewServer(e)
	e.URL = e.server.URL
	return e, nil
}

// Close ends it, and all watches.
func (e *EdgeCache) Close() {
	e.server.CloseClientConnections()
	e.server.Close()
	e.http.CloseIdleConnections()
}

// SetOnline cuts or restores the uplink. Nobody on the node is told.
func (e *EdgeCache) SetOnline(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.online != on {
		e.online = on
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

// Lies is how many writes it has acknowledged and dropped.
func (e *EdgeCache) Lies() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lies
}

// state returns whether there is an uplink, and what is closed when that changes.
func (e *EdgeCache) state() (bool, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.online, e.changed
}

// ServeHTTP implements http.Handler.
func (e *EdgeCache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("watch") != "" {
		e.mu.Lock()
		e.Watched[r.URL.Path]++
		e.mu.Unlock()
	}
	switch online, _ := e.state(); {
	case q.Get("sendInitialEvents") != "" || q.Get("limit") != "" || q.Get("continue") != "":
		http.Error(w, "no WatchList and no pages here", http.StatusUnprocessableEntity)
	case r.Header.Get("Authorization") != "":
		http.Error(w, "a token in the clear", http.StatusTeapot)
	case q.Get("watch") != "" && e.habits == MetaServer:
		e.replay(w, r)
	case q.Get("watch") != "":
		e.pass(w, r)
	case online:
		e.forward(w, r)
	default:
		e.offline(w, r)
	}
}

// forward asks upstream, and keeps what this cache keeps.
func (e *EdgeCache) forward(w http.ResponseWriter, r *http.Request) {
	code, body, err := e.ask(r.Context(), r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if r.Method == http.MethodGet && code == http.StatusOK {
		e.mu.Lock()
		e.answers[r.URL.Path] = body
		if collection, name := split(r.URL.Path); name != "" {
			e.put(collection, name, body)
		}
		e.mu.Unlock()
	}
	answer(w, code, body)
}

// offline answers from what is kept.
func (e *EdgeCache) offline(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	collection, name := split(r.URL.Path)
	switch {
	case e.habits == YurtHub && r.Method == http.MethodGet:
		if body, ok := e.answers[r.URL.Path]; ok {
			answer(w, http.StatusOK, body)
			return
		}
	case e.habits == YurtHub && r.Method == http.MethodPost:
		e.lies++
		body, _ := io.ReadAll(r.Body) // cut short at worst, as the cache would
		answer(w, http.StatusCreated, body)
		return
	case e.habits == YurtHub && r.Method == http.MethodPatch:
		if body, ok := e.answers[strings.TrimSuffix(r.URL.Path, "/status")]; ok {
			e.lies++
			answer(w, http.StatusOK, body)
			return
		}
	case r.Method != http.MethodGet:
		answer(w, http.StatusInternalServerError,
			[]byte(`{"kind":"Status","code":500,"message":"no connection to the cloud"}`))
		return
	case name != "":
		if body, ok := e.store[collection][name]; ok {
			answer(w, http.StatusOK, body)
			return
		}
	default:
		items := []json.RawMessage{}
		for _, o := range e.store[collection] {
			items = append(items, o)
		}
		body, _ := json.Marshal(map[string]any{ // of what was JSON
			"kind": kindOf(collection) + "List", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": ""}, "items": items,
		})
		answer(w, http.StatusOK, body)
		return
	}
	answer(w, http.StatusNotFound,
		[]byte(`{"kind":"Status","code":404,"reason":"NotFound","message":"not in the cache"}`))
}

// pass streams a watch; it goes silent when the uplink does.
func (e *EdgeCache) pass(w http.ResponseWriter, r *http.Request) {
	out := start(w)
	for {
		online, changed := e.state()
		if online {
			e.stream(r.Context(), r.URL.RequestURI(), changed,
				func(line []byte) { _, _ = out.Write(append(line, '\n')) })
			if on, _ := e.state(); on {
				return // upstream ended it
			}
			continue
		}
		select {
		case <-changed:
			return // YurtHub ends the watch when it is back
		case <-r.Context().Done():
			return
		}
	}
}

// replay is MetaServer's watch.
func (e *EdgeCache) replay(w http.ResponseWriter, r *http.Request) {
	out := start(w)
	collection := r.URL.Path
	tell := func(what string, o json.RawMessage) {
		line, _ := json.Marshal(map[string]any{"type": what, "object": o}) // of what was JSON
		_, _ = out.Write(append(line, '\n'))                               // the reader may be gone; its context says so
	}
	e.mu.Lock()
	var old []json.RawMessage
	for _, o := range e.store[collection] {
		old = append(old, o)
	}
	e.mu.Unlock()
	for _, o := range old {
		tell("ADDED", o)
	}
	for r.Context().Err() == nil {
		online, changed := e.state()
		if online {
			e.follow(r.Context(), collection, changed, tell)
		}
		if on, _ := e.state(); on && r.Context().Err() == nil {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
		}
	}
}

// follow brings the store up to date, without deletions, and then hears changes
// until the uplink goes.
func (e *EdgeCache) follow(ctx context.Context, collection string, changed <-chan struct{}, tell func(string, json.RawMessage)) {
	code, body, err := e.ask(ctx, http.MethodGet, collection, "", nil)
	if err != nil || code != http.StatusOK {
		return
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if json.Unmarshal(body, &list) != nil {
		return
	}
	for _, o := range list.Items {
		e.mu.Lock()
		news := e.put(collection, nameOf(o), o)
		e.mu.Unlock()
		if news {
			tell("ADDED", o)
		}
	}
	e.stream(ctx, collection+"?watch=true&resourceVersion="+list.Metadata.ResourceVersion, changed, func(line []byte) {
		var ev struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if json.Unmarshal(line, &ev) != nil {
			return
		}
		e.mu.Lock()
		if ev.Type == "DELETED" {
			delete(e.store[collection], nameOf(ev.Object))
		} else {
			e.put(collection, nameOf(ev.Object), ev.Object)
		}
		e.mu.Unlock()
		tell(ev.Type, ev.Object)
	})
}

// put stores an object; it reports whether that is news. e.mu is held.
func (e *EdgeCache) put(collection, name string, o json.RawMessage) bool {
	m := e.store[collection]
	if m == nil {
		m = map[string]json.RawMessage{}
		e.store[collection] = m
	}
	same := string(m[name]) == string(o)
	m[name] = o
	return !same
}

// stream calls line for every line of an upstream watch until changed is closed.
func (e *EdgeCache) stream(ctx context.Context, uri string, changed <-chan struct{}, line func([]byte)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.target+uri, nil)
	if err != nil {
		return
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	for {
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return
		}
		line(raw)
	}
}

func (e *EdgeCache) ask(ctx context.Context, method, uri, contentType string, body io.Reader) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.target+uri, body)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := e.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

func answer(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may be gone
}

// start begins a stream that is not held back.
func start(w http.ResponseWriter) io.Writer {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	f := flusher{w}
	f.flush()
	return f
}

type flusher struct{ http.ResponseWriter }

func (f flusher) flush() {
	_ = http.NewResponseController(f.ResponseWriter).Flush() // the client may be gone
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.flush()
	return n, err
}

// split parts an object's path into its collection and name; a collection has no
// name.
func split(path string) (collection, name string) {
	for _, p := range []string{"/api/v1/", Group} {
		if rest, ok := strings.CutPrefix(path, p); ok {
			plural, name, _ := strings.Cut(rest, "/")
			return p + plural, name
		}
	}
	return path, ""
}

func kindOf(collection string) string {
	kinds := map[string]string{
		"nodes":       "Node",
		"meshnodes":   "MeshNode",
		"podblocks":   "PodBlock",
		"podnetworks": "PodNetwork",
		"noderecords": "NodeRecord",
	}
	return kinds[collection[strings.LastIndex(collection, "/")+1:]]
}

func nameOf(o json.RawMessage) string {
	var x struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(o, &x); err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	return x.Metadata.Name
}
