package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// edgeServices installs kube-proxy and CoreDNS on the edges as the guide says, with this cluster's images; there is no
// resolver outside of it.
func edgeServices(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	text := kubectl(t, "kustomize", filepath.Join(root, "manifests/edge-services", flavour()))
	kubectlIn(t, strings.NewReplacer("registry.k8s.io/kube-proxy:v1.35.4", "e2e.test/kube-proxy:1",
		"registry.k8s.io/coredns/coredns:v1.12.4", "e2e.test/coredns:1", "        forward . /etc/resolv.conf\n", "").Replace(text), "apply", "-f", "-")
	// All of its pods are in site b.
	kubectlIn(t, `{apiVersion: v1, kind: Service, metadata: {name: counter}, spec: {selector: {app: shop}, ports: [{port: 80, targetPort: 9376}]}}`,
		"apply", "-f", "-")
	for _, ds := range []string{"edge-kube-proxy", "edge-coredns"} {
		kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/"+ds, "--timeout=55s")
	}
	if flavour() == "kubeedge" {
		storeAll(t, c)
	}
}

// storeAll does what the guide says so that edgecore has on its disk what CoreDNS and kube-proxy read, and waits until it has.
func storeAll(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	stamp := strconv.FormatInt(time.Now().UnixNano(), 10)
	kubectl(t, "annotate", "namespaces,services,endpointslices", "--all", "-A", "--overwrite", "edge-services/cached="+stamp)
	for _, n := range edges() {
		for _, label := range []string{`metadata.name":"default"`, `service-name":"counter"`} {
			eventually(t, 30*time.Second, func(ctx context.Context) error {
				// Annotations come before labels, in one JSON text per object.
				out, err := c.On(ctx, n, "sh", "-c", "cat /var/lib/kubeedge/edgecore.db* | grep -acE '"+stamp+`[^}]*\}[^}]*`+label+"'")
				if err != nil {
					err = fmt.Errorf("%s has not stored what has the label %s: %w: %s", n, label, err, out)
				}
				return err
			})
		}
	}
}

// Services by name and ClusterIP, from pods on all sides of the NATs to endpoints on all sides.
func TestKubeEdgeServices(t *testing.T) { servicesOnEdges(t, kubeEdge(t)) }
func TestOpenYurtServices(t *testing.T) { servicesOnEdges(t, openYurt(t)) }

func servicesOnEdges(t *testing.T, c *cluster.Cluster) {
	start := time.Now()
	edgeServices(t, c)
	installed := time.Since(start)
	web := waitPods(t, "app=web", 4, time.Minute)
	eventually(t, time.Minute, func(ctx context.Context) error { return endpointsAre(ctx, c, "web", web) })
	var tasks []func() error
	for _, p := range web {
		eventually(t, 30*time.Second, func(ctx context.Context) error { _, err := curl(ctx, c, p, "http://web/"); return err })
		tasks = append(tasks, func() error {
			return allEndpoints(web, func() (answer, error) {
				a, err := curl(t.Context(), c, p, "http://web.default.svc.cluster.local/")
				if err == nil && a.Name != p.name && a.Client != p.ip {
					err = fmt.Errorf("%s → web: the server saw %s, want %s", p.name, a.Client, p.ip)
				}
				return a, err
			})
		})
	}
	ok(t, parallel(4, tasks...))
	figure(t, "%s: kube-proxy and CoreDNS on the edges after %s; from 4 nodes all 4 endpoints of a Service answer by name, source kept",
		platform(), seconds(installed))
}

// serviceAnswers wants a Service of a site to answer its pods by name, while it has no uplink.
func serviceAnswers(t *testing.T, c *cluster.Cluster, site []pod, since time.Time) {
	t.Helper()
	eventually(t, time.Minute, func(ctx context.Context) error {
		var errs []error
		for _, p := range site {
			_, err := curl(ctx, c, p, "http://counter/")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	figure(t, "%s: … a Service of the site answers by name from both nodes after %s", platform(), seconds(time.Since(since)))
}
