package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"edgemesh/test/kube/cluster"
)

// ClusterIP Services with endpoints on all nodes, through kube-proxy in both modes.
func TestServicesIPTables(t *testing.T) { services(t, "iptables") }
func TestServicesNFTables(t *testing.T) {
	if minor(t, bare(t)) < 31 {
		t.Skip("kube-proxy has this mode from Kubernetes 1.31 on without a feature gate")
	}
	services(t, "nftables")
}

func services(t *testing.T, mode string) {
	c, _ := installed(t)
	proxyMode(t, c, mode)
	web := waitPods(t, "app=web", 4, time.Minute)
	var svc corev1.Service
	ok(t, c.API().Get(t.Context(), "/api/v1/namespaces/default/services/web", &svc))
	eventually(t, time.Minute, func(ctx context.Context) error { return endpointsAre(ctx, c, "web", web) })
	target := "http://" + svc.Spec.ClusterIP + "/"
	// kube-proxy's first rules after a change of mode.
	for _, n := range cluster.FirstNodes() {
		eventually(t, 30*time.Second,
			func(ctx context.Context) error { _, err := curlNode(ctx, c, n, target); return err })
	}
	start := time.Now()
	var tasks []func() error
	for _, p := range web {
		tasks = append(tasks,
			func() error {
				return allEndpoints(web, func() (answer, error) {
					a, err := curl(t.Context(), c, p, target)
					if err == nil && a.Name != p.name && a.Client != p.ip {
						err = fmt.Errorf("%s → %s: the server saw %s, want %s", p.name, target, a.Client, p.ip)
					}
					return a, err
				})
			},
			func() error {
				return allEndpoints(web, func() (answer, error) { return curlNode(t.Context(), c, p.node, target) })
			})
	}
	ok(t, parallel(4, tasks...))
	figure(t, "Services, kube-proxy %s: all 4 endpoints answered from 4 pods and 4 nodes, %s", mode,
		seconds(time.Since(start)))
}

// endpointsAre wants the pods to be the ready endpoints of a Service.
func endpointsAre(ctx context.Context, c *cluster.Cluster, service string, want []pod) error {
	var list discoveryv1.EndpointSliceList
	path := "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3D" + service
	if err := c.API().Get(ctx, path, &list); err != nil {
		return err
	}
	ready := map[string]bool{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready && e.TargetRef != nil {
				ready[e.TargetRef.Name] = true
			}
		}
	}
	for _, p := range want {
		if !ready[p.name] || len(ready) != len(want) {
			return fmt.Errorf("ready endpoints of %s are %v, want %v", service, ready, want)
		}
	}
	return nil
}

// proxyMode restarts kube-proxy everywhere, in the given mode.
func proxyMode(t *testing.T, c *cluster.Cluster, mode string) {
	t.Helper()
	ok(t, c.Setting("proxy-mode", mode))
	for _, n := range cluster.FirstNodes() {
		ok(t, c.Service(t.Context(), "restart", n, "kube-proxy"))
	}
	for _, n := range cluster.FirstNodes() {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			out, err := c.On(ctx, n, "curl", "-sm2", "http://127.0.0.1:10249/proxyMode")
			if err == nil && out != mode {
				err = fmt.Errorf("kube-proxy on %s is in mode %q", n, out)
			}
			if err != nil {
				return err
			}
			rules, err := c.On(ctx, n, "nft", "list", "tables")
			if err == nil && strings.Contains(rules, "kube-proxy") != (mode == "nftables") {
				err = fmt.Errorf("tables on %s: %s", n, rules)
			}
			return err
		})
	}
}

// allEndpoints fetches until every pod has answered. kube-proxy picks at random: 80
// tries miss one of four with a probability of 4 · 0.75^80 < 1e-9.
func allEndpoints(want []pod, get func() (answer, error)) error {
	seen := map[string]bool{}
	for range 80 {
		a, err := get()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(want, func(p pod) bool { return p.name == a.Name }) {
			return fmt.Errorf("%q answered, which is no endpoint", a.Name)
		}
		if seen[a.Name] = true; len(seen) == len(want) {
			return nil
		}
	}
	return fmt.Errorf("only %v answered", seen)
}

// CoreDNS answers from every site: a headless Service with its pods' addresses, each
// pod by name, a Service with its ClusterIP.
func TestDNS(t *testing.T) {
	c, _ := installed(t)
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=55s")
	shop := waitPods(t, "app=shop", 2, time.Minute)
	var svc corev1.Service
	ok(t, c.API().Get(t.Context(), "/api/v1/namespaces/default/services/web", &svc))
	var addrs []string
	for _, p := range shop {
		addrs = append(addrs, p.ip)
	}
	slices.Sort(addrs)
	var slowest time.Duration
	for _, from := range waitPods(t, "app=web", 4, time.Minute) {
		start := time.Now()
		for name, want := range map[string][]string{
			"shop": addrs, "shop.default.svc.cluster.local": addrs, "web": {svc.Spec.ClusterIP},
		} {
			var got []string
			// The cache of CoreDNS holds a name for 5 s.
			eventually(t, 15*time.Second, func(ctx context.Context) error {
				out, err := c.Exec(ctx, from.node, from.name, "lookup", name)
				if err == nil {
					err = json.Unmarshal([]byte(out), &got)
				}
				if err == nil && !reflect.DeepEqual(got, want) {
					err = fmt.Errorf("%s on %s: %s is %v, want %v", from.name, from.node, name, got, want)
				}
				return err
			})
		}
		slowest = max(slowest, time.Since(start)/3)
		for _, p := range shop {
			var a answer
			// The same cache, by pod.
			eventually(t, 15*time.Second, func(ctx context.Context) (err error) {
				a, err = curl(ctx, c, from, "http://"+p.name+".shop:9376/")
				return err
			})
			if a.Name != p.name || a.Client != from.ip && from.name != p.name {
				t.Errorf("%s → %s.shop: %+v", from.name, p.name, a)
			}
		}
	}
	figure(t,
		"CoreDNS from 4 nodes of 3 sites: headless and ClusterIP names right, slowest mean %d ms with starting the client",
		slowest.Milliseconds())
}
