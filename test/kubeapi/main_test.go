package kubeapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

// They need Kubernetes' programs.
var _ = tier.Package(tier.OfAll)

// patience bounds every wait for something that takes moments on an idle machine.
const patience = 45 * time.Second

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(hangVar); kubeconfig != "" {
		os.Exit(hangs(kubeconfig))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kubeapi-")
	if err == nil {
		defer clusters.stop()
		clusters.dir = dir
		err = clusters.prepare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		_ = os.RemoveAll(dir)
	} else {
		fmt.Fprintln(os.Stderr, "logs are in", dir)
	}
	return code
}

// newPeerID is that of a key nobody has.
func newPeerID(t testing.TB) string {
	t.Helper()
	_, id := keytest.New(t)
	return id.String()
}

// must stops the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// guarded skips the test of what policies refuse where the API server has none.
func guarded(t *testing.T, c *kubeapi.Cluster) *kubeapi.Cluster {
	t.Helper()
	if c.Old() {
		t.Skip("nothing guards the objects before Kubernetes 1.30")
	}
	return c
}

// network creates the PodNetwork with 10.244.0.0/16, and fields on top. All nodes are trusted where nothing guards the objects.
func network(t *testing.T, c *kubeapi.Cluster, fields map[string]any) {
	t.Helper()
	spec := map[string]any{"podCIDRs": []string{"10.244.0.0/16"}, "trustedNodes": c.Old()}
	for k, v := range fields {
		spec[k] = v
	}
	fair.Eventually(t, patience, "the PodNetwork is accepted", fair.True(func() bool {
		err := c.CreateNetwork(spec)
		if err != nil {
			t.Log(err)
		}
		return err == nil
	}))
	if c.Old() {
		return
	}
	// API servers learn of a policy's parameters by a watch of their own, and refuse all blocks until then ("no params found").
	wrong := map[string]any{"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "PodBlock",
		"metadata": map[string]any{"name": "10-244-0-0-17"}, "spec": map[string]any{"cidr": "10.244.0.0/17", "nodeName": "none"}}
	fair.Eventually(t, patience, "the PodNetwork's block size is enforced", fair.True(func() bool {
		err := c.Do(http.MethodPost, kubeapi.Group+"podblocks?dryRun=All", wrong, nil)
		return err != nil && strings.Contains(err.Error(), "is not of the block size of PodNetwork cluster")
	}))
}

// agent is a kube.Source under test, with what it has said.
type agent struct {
	t      *testing.T
	cfg    kube.Config
	source *kube.Source
	cancel context.CancelFunc
	done   chan struct{}
	also   func(mesh.State) // nil, or called with each State

	mu     sync.Mutex
	state  mesh.State
	states int
	lost   map[string]bool // members that were there and then were not
	errs   []error
}

// tokenAgent is the agent of node as a DaemonSet pod has it, through server.
func tokenAgent(t *testing.T, c *kubeapi.Cluster, node, server string) *agent {
	t.Helper()
	token := filepath.Join(c.Dir, node+".token")
	must(t, c.AgentToken(node, token, 3600), c.TokenKubeconfig(node+".conf", token, server))
	return newAgent(t, node, filepath.Join(c.Dir, node+".conf"))
}

// certAgent is the agent of node as a static pod or host unit.
func certAgent(t *testing.T, c *kubeapi.Cluster, node, server string) *agent {
	t.Helper()
	cert, err := c.NodeCertificate(node, time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig(node+".conf", cert, server))
	return newAgent(t, node, filepath.Join(c.Dir, node+".conf"))
}

func newAgent(t *testing.T, node, kubeconfig string) *agent {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	return &agent{
		t:    t,
		lost: map[string]bool{},
		cfg: kube.Config{
			Access:       client.Access{Kubeconfig: kubeconfig},
			NodeName:     node,
			PeerID:       mesh.PeerID(newPeerID(t)),
			AgentVersion: "v0.0.0-test",
			StateDir:     t.TempDir(),
			Log:          slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})).With("node", node),
		},
	}
}

// start brings it up, as the daemon does: Start, save, Watch.
func (a *agent) start() {
	a.t.Helper()
	if err := a.tryStart(patience); err != nil {
		a.t.Fatalf("start %s: %v", a.cfg.NodeName, err)
	}
	a.t.Cleanup(a.stop)
}

func (a *agent) tryStart(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return a.startUntil(ctx)
}

// waits starts it until a condition holds; it must not be up by then.
func (a *agent) waits(what string, condition func() bool) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.startUntil(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err == nil {
			a.stop()
			a.t.Errorf("%s came up before %s", a.cfg.NodeName, what)
		}
	}()
	fair.Eventually(a.t, patience, what, fair.True(condition))
}

func (a *agent) startUntil(ctx context.Context) error {
	var err error
	if a.source, err = kube.New(a.cfg); err != nil {
		return err
	}
	s, warning, err := a.source.Start(ctx)
	if err != nil {
		return err
	}
	if warning != nil {
		a.t.Log("warning:", warning)
	}
	a.onState(s)
	watch, stop := context.WithCancel(context.Background())
	a.cancel, a.done = stop, make(chan struct{})
	go func() {
		defer close(a.done)
		a.source.Watch(watch, a.onState, a.onErr)
	}()
	a.source.SetServing(nil)
	return nil
}

func (a *agent) stop() {
	if a.cancel != nil {
		a.cancel()
		<-a.done
	}
}

func (a *agent) onState(s mesh.State) {
	err := errors.Join(s.Validate(), snapshot.Save(a.cfg.StateDir, s))
	if a.also != nil {
		a.also(s)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.t.Errorf("%s: %v", a.cfg.NodeName, err)
	}
	was := a.state
	was.Policies = s.Policies // that a controller compiles them says nothing of the members
	if a.states == 0 || !reflect.DeepEqual(s, was) {
		a.states++
	}
	now := map[string]bool{}
	for _, n := range s.Nodes {
		now[n.Name] = true
	}
	for _, n := range a.state.Nodes {
		if !now[n.Name] {
			a.lost[n.Name] = true
		}
	}
	a.state = s
}

// relays returns those of the last State.
func (a *agent) relays() []mesh.Relay {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.Relays
}

// seen counts the different States so far.
func (a *agent) seen() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.states
}

// blip says whether a member ever left.
func (a *agent) blip(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost[name]
}

func (a *agent) onErr(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errs = append(a.errs, err)
	a.t.Logf("%s: onErr: %v", a.cfg.NodeName, err)
}

// members are NAME=BLOCK,… of the last State, by name.
func (a *agent) members() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, n := range a.state.Admitted().Nodes {
		for _, b := range n.PodCIDRs {
			out = append(out, n.Name+"="+b.String())
		}
	}
	return strings.Join(out, " ")
}

func (a *agent) sees(want string) {
	a.t.Helper()
	fair.Eventually(a.t, patience, fmt.Sprintf("%s sees %q", a.cfg.NodeName, want), fair.True(func() bool {
		ok := a.members() == want
		return ok
	}))
}

// told reports whether onErr was called with an error that has text in it.
func (a *agent) told(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, err := range a.errs {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
