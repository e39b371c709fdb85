package controller

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/admission/enroll"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/admit"
)

const (
	// keySecret is the Secret with the controllers' key, which the first leader makes.
	keySecret = "edgemesh-controller"
	keyEntry  = "identity.key"
	// refreshEvery is how often the PodNetwork is read: it says where the relays are.
	refreshEvery = 5 * time.Second
	// keepRoots is how long the platform's CAs are kept.
	keepRoots = time.Minute
	// kubeletCA is where an API server publishes the CA of its clients' certificates, kubelets' among them.
	kubeletCA = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
	tryAgain  = 5 * time.Second
)

// registry serves the edges that reach this controller while it leads.
type registry struct {
	api       *client.Client
	loop      *watchdog.Loop // of its sight
	namespace string
	caFiles   []string
	secrets   string // file with the join secrets that relays require; "": none does
	sight     Sight
	metrics   *metrics
	log       *slog.Logger

	relays atomic.Pointer[[]peer.AddrInfo]
	held   atomic.Pointer[[]string] // peer IDs of relays at which it has a reservation
	warned bool                     // that the PodNetwork does not keep them
	roots  roots
}

// run serves until ctx ends.
func (g *registry) run(ctx context.Context) {
	for ; ctx.Err() == nil; wake.Sleep(ctx, tryAgain) {
		if err := g.serve(ctx); err != nil && ctx.Err() == nil {
			g.metrics.failures.Inc()
			g.log.Warn("edges cannot reach this controller; retrying", "err", err)
		}
	}
}

func (g *registry) serve(ctx context.Context) error {
	g.held.Store(&[]string{})
	key, err := g.key(ctx)
	if err != nil {
		return err
	}
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	if err := g.refresh(ctx, self); err != nil {
		return err
	}
	d := &deputy{api: g.api, log: g.log}
	prover, err := g.prover()
	if err != nil {
		return err
	}
	c, err := enroll.NewController(key, enroll.NewServer(g.trusted, d.write, g.metrics.request, g.log), prover.Admit, g.log)
	if err != nil {
		return err
	}
	defer c.Close()
	g.log.Info("this controller is reached over relays", "peerID", self)
	ctx, end := context.WithCancel(ctx)
	defer end()
	var stay sync.WaitGroup
	defer stay.Wait()
	stay.Go(func() {
		c.Run(ctx, func() []peer.AddrInfo { return *g.relays.Load() }, g.holds)
	})
	nodes := &sight{Sight: g.sight, api: watched{g.api}, loop: g.loop, log: g.log, pace: writing(), sees: c.Sees, relays: func() []peer.AddrInfo { return *g.relays.Load() }}
	stay.Go(func() { nodes.run(ctx) })
	defer end()
	if g.secrets != "" {
		stay.Go(func() {
			join.Watch(ctx, g.secrets, nil, prover.Set, func(err error) {
				g.log.Error("join secret rejected: the last good one is used", "err", err)
			})
		})
	}
	for wake.Sleep(ctx, refreshEvery) {
		if err := g.refresh(ctx, self); err != nil && ctx.Err() == nil {
			g.log.Warn("cannot read the PodNetwork: its last relays stay in use", "err", err)
		}
	}
	return nil
}

// prover proves to relays what they require, if anything.
func (g *registry) prover() (*join.Prover, error) {
	if g.secrets == "" {
		return join.NewProver(nil, g.log), nil
	}
	secrets, err := join.Load(g.secrets)
	if err != nil {
		return nil, fmt.Errorf("--join-secret-file: %w", err)
	}
	return join.NewProver(secrets, g.log), nil
}

// holds notes at which relays there is a reservation.
func (g *registry) holds(at []peer.ID) {
	ids := wording.Texts(at)
	slices.Sort(ids)
	g.held.Store(&ids)
	g.metrics.relays.Set(float64(len(ids)))
}

// refresh reads where the relays are, and has the PodNetwork name this controller and the relays by which it is reached.
func (g *registry) refresh(ctx context.Context, self peer.ID) error {
	var n api.PodNetwork
	path := api.PodNetworks().Path(api.NetworkName)
	if err := g.api.Get(ctx, path, &n); err != nil {
		return fmt.Errorf("read the PodNetwork: %w", err)
	}
	list, err := file.ParseRelays(n.Spec.Relays, nil)
	if err != nil {
		return fmt.Errorf("PodNetwork %s: %w", api.NetworkName, err)
	}
	m, err := admit.Membership(nil, list, nil, admit.Decode)
	if err != nil {
		return err
	}
	g.relays.Store(&m.Relays)
	if !slices.Equal(n.Status.Controllers, []string{self.String()}) {
		patch := map[string]any{"status": api.PodNetworkStatus{Controllers: []string{self.String()}}}
		if err := g.api.Patch(ctx, path+"/status", client.Merge, nil, patch, &n); err != nil {
			return fmt.Errorf("name this controller in the PodNetwork's status: %w", err)
		}
	}
	return g.say(ctx, path, n)
}

// say has the PodNetwork name the relays at which there is a reservation.
func (g *registry) say(ctx context.Context, path string, n api.PodNetwork) error {
	held := *g.held.Load()
	if slices.Equal(n.Status.Reservations, held) {
		return nil
	}
	if err := g.api.Patch(ctx, path+"/status", client.Merge, nil, map[string]any{"status": map[string]any{"reservations": held}}, &n); err != nil {
		return fmt.Errorf("name the relays that reach this controller in the PodNetwork's status: %w", err)
	}
	if !slices.Equal(n.Status.Reservations, held) && !g.warned {
		g.warned = true
		g.log.Warn("the PodNetwork does not keep by which relays this controller is reached: its CustomResourceDefinition is of an earlier release; apply the chart's crds directory")
	}
	return nil
}

// secret is a core/v1 Secret.
type secret struct {
	api.Type
	Meta api.Meta          `json:"metadata"`
	Data map[string][]byte `json:"data"`
}

// keyPath is the Secret's.
func (g *registry) keyPath() string {
	return "/api/v1/namespaces/" + g.namespace + "/secrets/" + keySecret
}

// key reads the controllers' key, or makes it.
func (g *registry) key(ctx context.Context) (crypto.PrivKey, error) {
	var s secret
	err := g.api.Get(ctx, g.keyPath(), &s)
	if apierrors.IsNotFound(err) {
		var b []byte
		if b, err = newKey(); err != nil {
			return nil, err
		}
		in := secret{Type: api.Type{APIVersion: "v1", Kind: "Secret"}, Meta: api.Meta{Name: keySecret}, Data: map[string][]byte{keyEntry: b}}
		err = g.api.Create(ctx, strings.TrimSuffix(g.keyPath(), "/"+keySecret), in, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("the controllers' key, Secret %s/%s: %w", g.namespace, keySecret, err)
	}
	key, err := crypto.UnmarshalPrivateKey(s.Data[keyEntry])
	if err != nil {
		return nil, fmt.Errorf("the controllers' key, Secret %s/%s: %s: %w; delete it to have another key made", g.namespace, keySecret, keyEntry, err)
	}
	return key, nil
}

func newKey() ([]byte, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the controllers' key: %w", err)
	}
	return crypto.MarshalPrivateKey(key)
}

// roots are the platform's CAs, kept for a while.
type roots struct {
	mu   sync.Mutex // a leaf, held while they are read: one reads for all
	pool *x509.CertPool
	read time.Time
}

// trusted returns the CAs that sign nodes' certificates: of the API server's clients, and those in the files.
func (g *registry) trusted(ctx context.Context) (*x509.CertPool, error) {
	g.roots.mu.Lock()
	defer g.roots.mu.Unlock()
	if g.roots.pool != nil && time.Since(g.roots.read) < keepRoots {
		return g.roots.pool, nil
	}
	pool, found := x509.NewCertPool(), false
	var errs []error
	var m struct {
		Data map[string]string `json:"data"`
	}
	if err := g.api.Get(ctx, kubeletCA, &m); err != nil {
		errs = append(errs, err)
	} else {
		found = pool.AppendCertsFromPEM([]byte(m.Data["client-ca-file"]))
	}
	for _, name := range g.caFiles {
		text, err := os.ReadFile(name)
		if err == nil && !pool.AppendCertsFromPEM(text) {
			err = fmt.Errorf("%s: no certificate in it", name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found = true
	}
	if len(errs) > 0 {
		g.log.Warn("a CA of nodes' certificates cannot be read: nodes with certificates of that CA are refused", "err", errors.Join(errs...))
	}
	if !found {
		return nil, fmt.Errorf("no CA of nodes' certificates: %w", errors.Join(errs...))
	}
	g.roots.pool, g.roots.read = pool, time.Now()
	return pool, nil
}
