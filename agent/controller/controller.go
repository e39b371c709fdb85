// Package controller is what one process of the cluster does for all nodes, in the cloud.
// Any number of them may run: one leads, the others wait.
//
//	controller.go   Run: from the configuration to the end
//	lease.go        which one leads
//	follow.go       lists and watches a kind
//	surplus.go      deletes the PodBlocks that nodes claim beyond those that count
//	rollout.go      stops an update of the agents that crash after they took over
//	records.go      keeps NodeRecords, which agents follow in place of Nodes
//	pace.go         nodes that change their objects again and again
//	policies.go     compiles the peers of NetworkPolicies for agents
//	sign.go         signs who is a member
//	enroll.go       edges reach it over relays
//	deputy.go       what it writes for them
//	sight.go        says of nodes that no relay sees, or whose kubelet is silent, that nobody knows whether they are ready
//	journal.go      Events about who joins, leaves, is banned or has another key
//	watch.go        which of its loops are watched
//	metrics.go      what is counted; serves /metrics, /healthz, /readyz
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
)

// serviceAccount is where a pod finds the namespace it is in.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config says how to reach the API, and who this controller is.
type Config struct {
	Kubeconfig string // path, "" for in-cluster access
	Server     string // URL that replaces the kubeconfig's or the pod's, "" for theirs
	Namespace  string // of the Lease; "" is the pod's
	Identity   string // of this process among the controllers

	Sign   bool     // it signs who is a member, with its key, which relays pin
	Enroll bool     // edges reach it, over relays
	CAs    []string // files with CAs of nodes' certificates, besides the API server's for its clients
	// JoinSecretFile has what relays outside of the cluster require; "": none does.
	JoinSecretFile string
	Sight          Sight // zero: DefaultSight

	MetricsAddress string // HOST:PORT, "" = off
	Version        string
	Log            *slog.Logger

	Block func(loop string) // tests block loops with it
}

// ErrConfig is what the operator has to fix on the command line, besides the access to the API.
var ErrConfig = errors.New("cannot start")

// Run works until ctx ends. The error wraps ErrConfig or client.ErrConfig if it is the
// operator's to fix.
func Run(ctx context.Context, cfg Config) error {
	dog := watchdog.New(watchdog.Config{Log: cfg.Log, Block: cfg.Block})
	defer dog.Start(ctx)()
	if cfg.Namespace == "" {
		text, err := os.ReadFile(filepath.Join(serviceAccount, "namespace"))
		if err != nil {
			return fmt.Errorf("%w: --namespace: not in a pod (%w); name the namespace of the controllers' Lease", ErrConfig, err)
		}
		cfg.Namespace = strings.TrimSpace(string(text))
	}
	names := resolve.New(resolve.Config{Log: cfg.Log})
	defer names.Close()
	budget := upkeep.New()
	c, err := client.New(client.Access{Kubeconfig: cfg.Kubeconfig, Server: cfg.Server, Names: names, Upkeep: budget}, "edgemesh-controller/"+cfg.Version, nil)
	if err != nil {
		return fmt.Errorf("--kubeconfig, --server: %w", err)
	}
	defer c.Close()

	m := newMetrics(budget)
	held := &leases{c: c, namespace: cfg.Namespace}
	e := &election{store: held, identity: cfg.Identity, log: cfg.Log, leads: m.lead, heard: m.hear, loop: dog.Loop("leader election")}
	if cfg.MetricsAddress != "" {
		l, err := net.Listen("tcp", cfg.MetricsAddress)
		if err != nil {
			return fmt.Errorf("%w: --metrics-address: %w; free the port, set another one, or \"\" for none", ErrConfig, err)
		}
		defer endpoint.Serve(l, endpoint.Handler(m.registry, dog.Healthy, m.ready), cfg.Log)()
	}
	cfg.Log.Info("started", "identity", cfg.Identity, "api", c.URL(), "lease", cfg.Namespace+"/"+leaseName)
	dog.Ready("taking part in the election of a leader")
	shared, seen := watched{c}, dog.Loop("sight of nodes")
	e.run(ctx, func(ctx context.Context) {
		s := &surplus{api: shared, loop: dog.Loop("surplus PodBlocks"), log: cfg.Log, metrics: m}
		g := &registry{api: c, namespace: cfg.Namespace, caFiles: cfg.CAs, secrets: cfg.JoinSecretFile, sight: cmp.Or(cfg.Sight, DefaultSight()), loop: seen, metrics: m, log: cfg.Log}
		n := &records{api: shared, loop: dog.Loop("NodeRecords"), lease: cfg.Namespace + "/" + leaseName, log: cfg.Log, metrics: m, pace: copying(), version: c.Version}
		var all sync.WaitGroup
		all.Go(func() { s.run(ctx) })
		latest, signing := make(chan mesh.State, 1), make(chan mesh.State, 1)
		if cfg.Sign {
			n.signed, n.grants = make(chan map[string]string, 1), &atomic.Bool{}
			n.exist = make(chan map[string]bool, 1)
			x := &signer{api: shared, members: signing, exist: n.exist, key: g.key, secret: g.keyPath(), public: "/api/v1/namespaces/" + cfg.Namespace + "/configmaps/edgemesh-signer", out: n.signed, grants: n.grants, log: cfg.Log}
			all.Go(func() { x.run(ctx) })
		} else {
			all.Go(func() {
				for {
					if _, failed := tell(ctx, shared, cfg.Log, nil, nil); !failed || !wake.Sleep(ctx, lookAgain) {
						return
					}
				}
			})
		}
		all.Go(func() { n.run(ctx) })
		all.Go(func() {
			for ; ctx.Err() == nil; wake.Sleep(ctx, tryAgain) {
				err := membership(ctx, client.Access{Kubeconfig: cfg.Kubeconfig, Server: cfg.Server}, cfg.Version, cfg.Log.With("part", "membership"), func(m mesh.State) {
					held.members.Store(m.Digest())
					wake.Latest(latest, m)
					wake.Latest(signing, m)
				})
				held.members.Store("")
				if err != nil && ctx.Err() == nil {
					cfg.Log.Warn("no NetworkPolicy is compiled and no member signed: the membership cannot be read; retrying", "err", err)
				}
			}
		})
		all.Go(func() { newPolicies(shared, latest, dog.Loop("NetworkPolicies"), cfg.Log, m).run(ctx) })
		p := &rollouts{api: shared, loop: dog.Loop("rollouts"), namespace: cfg.Namespace, log: cfg.Log, metrics: m}
		all.Go(func() { p.run(ctx) })
		all.Go(func() { newJournal(shared, dog.Loop("Events about members"), cfg.Log).run(ctx) })
		if cfg.Enroll {
			all.Go(func() { g.run(ctx) })
		} else { // these nodes have kubelets that are heard
			kubelets := &sight{Sight: g.sight, api: shared, loop: seen, log: cfg.Log, pace: writing()}
			all.Go(func() { kubelets.run(ctx) })
		}
		all.Wait()
	})
	return nil
}
