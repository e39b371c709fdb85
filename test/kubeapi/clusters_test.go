package kubeapi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"edgemesh/test/kubeapi"
	"edgemesh/test/repo"
)

// clusters are those of all tests.
var clusters pool

// pool lends clusters: a test has one to itself, and a later test gets it emptied. As many are started as tests run at a
// time, because a start costs more processor time than most of the tests.
type pool struct {
	dir string // of the clusters

	mu   sync.Mutex
	all  []*kubeapi.Cluster
	free map[bool][]*kubeapi.Cluster // by whether KubeEdge has its rights there
}

// prepare starts the first cluster, so that tests do not begin if none can be started.
func (p *pool) prepare() error {
	c, err := p.start()
	p.free = map[bool][]*kubeapi.Cluster{false: {c}}
	return err
}

// start starts one more.
func (p *pool) start() (*kubeapi.Cluster, error) {
	dir, err := os.MkdirTemp(p.dir, "")
	if err != nil {
		return nil, err
	}
	c, err := kubeapi.New(dir)
	p.mu.Lock()
	p.all = append(p.all, c)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return c, c.Install()
}

// stop ends all of them.
func (p *pool) stop() {
	for _, c := range p.all {
		c.Stop()
	}
}

// idle takes a cluster that nobody has: nil if there is none.
func (p *pool) idle(kubeEdge bool) *kubeapi.Cluster {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.free[kubeEdge]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	p.free[kubeEdge] = all[:len(all)-1]
	return c
}

// lend returns a cluster for the length of the test. One in which a test failed is lent to nobody else.
func (p *pool) lend(t *testing.T, kubeEdge bool) *kubeapi.Cluster {
	t.Helper()
	c := p.idle(kubeEdge)
	if c == nil && kubeEdge {
		if c = p.idle(false); c != nil {
			must(t, c.KubeEdge())
		}
	}
	if c == nil {
		var err error
		c, err = p.start()
		must(t, err)
		if kubeEdge {
			must(t, c.KubeEdge())
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs are in %s", c.Dir)
			c.Stop()
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free[kubeEdge] = append(p.free[kubeEdge], c)
	})
	for _, path := range []string{
		kubeapi.Group + "podblocks", kubeapi.Group + "meshnodes", kubeapi.Group + "podnetworks", kubeapi.Group + "noderecords", kubeapi.Group + "policygroups",
		"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0",
		"/api/v1/namespaces/" + kubeapi.Namespace + "/pods?gracePeriodSeconds=0", "/api/v1/nodes",
		"/api/v1/namespaces/default/events",
	} {
		must(t, c.Delete(path))
	}
	return c
}

// emptyCluster lends a cluster without anything of other tests.
func emptyCluster(t *testing.T) *kubeapi.Cluster { return clusters.lend(t, false) }

// kubeEdgeCluster lends one in which KubeEdge has the rights that the chart gives it.
func kubeEdgeCluster(t *testing.T) *kubeapi.Cluster { return clusters.lend(t, true) }

// agentProgram is the path of edgemesh-agent: what make has built, or else built for all tests.
var agentProgram = sync.OnceValues(func() (string, error) {
	root, err := repo.Root()
	if err != nil {
		return "", err
	}
	if os.Getenv("EDGEMESH_NOBUILD") != "" {
		return filepath.Join(root, "bin/edgemesh-agent"), nil
	}
	bin := filepath.Join(clusters.dir, "edgemesh-agent")
	build := exec.Command("go", "build", "-o", bin, "./agent")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return bin, nil
})
