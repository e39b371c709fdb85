package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/kube/cluster"
	"edgemesh/test/tier"
)

// They need a cluster.
var _ = tier.Package(tier.OfLong)

// product is our programs on the cluster's nodes and in its pods: their load never slows
// its clocks.
var product = fair.Named("edgemesh-")

// suite is what the tests share: one cluster, with our network installed once.
var suite struct {
	mu        sync.Mutex
	c         *cluster.Cluster
	err       error
	installed *installation
	figures   []string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if c := suite.c; c != nil {
		code = max(code, finish(c))
	}
	for _, f := range suite.figures {
		fmt.Println(f)
	}
	os.Exit(code)
}

// finish ends the cluster, or leaves it.
func finish(c *cluster.Cluster) int {
	if os.Getenv("KEEP") != "" || os.Getenv("EDGEMESH_KUBE_ATTACH") != "" {
		how, err := c.Keep()
		if err != nil {
			fmt.Println("keep:", err)
			return 1
		}
		fmt.Println("the cluster is left running:", how)
		return 0
	}
	if err := c.Close(); err != nil {
		fmt.Println("the cluster could not be removed:", err)
		return 1
	}
	fmt.Println("logs:", c.Logs)
	return 0
}

// flavour is what runs on the edges of the cluster: kubeedge, openyurt, or kubelets alone.
func flavour() string { return os.Getenv("EDGEMESH_KUBE") }

// bare returns the cluster, brought up by the first test that asks, without a pod
// network until installed was called.
func bare(t *testing.T) *cluster.Cluster {
	t.Helper()
	if !tier.IsLong() {
		t.Skip(tier.Reasons[tier.OfLong])
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	suite.mu.Lock()
	defer suite.mu.Unlock()
	if suite.c == nil && suite.err == nil {
		start := time.Now()
		if dir := os.Getenv("EDGEMESH_KUBE_ATTACH"); dir != "" {
			suite.c, suite.err = cluster.Attach(dir)
		} else if suite.c, suite.err = cluster.Up(context.Background(), os.Stdout, cluster.Options{Flavour: flavour(), Families: os.Getenv("FAMILIES")}); suite.err == nil {
			figureLocked("cluster of four nodes up, with building what was missing: %.0f s",
				time.Since(start).Seconds())
		}
	}
	if suite.err != nil {
		t.Fatal(suite.err)
	}
	return suite.c
}

// figure notes what was measured, for the log and the end of the run.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf(format, args...)
	suite.mu.Lock()
	defer suite.mu.Unlock()
	figureLocked(format, args...)
}

func figureLocked(format string, args ...any) {
	suite.figures = append(suite.figures, "  "+fmt.Sprintf(format, args...))
}

// ok ends the test when err is not nil.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// minor is the API server's minor version, which decides what guards our objects.
func minor(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	n, err := c.Minor(t.Context())
	ok(t, err)
	return n
}

// kubectl runs kubectl, which must succeed within a minute.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return kubectlIn(t, "", args...)
}

func kubectlIn(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := bare(t).KubectlIn(ctx, stdin, args...)
	ok(t, err)
	return out
}

// eventually tries f again and again until it returns nil, or ends the test when the time
// is over. It returns how long that took. Both are fair times.
func eventually(t *testing.T, within time.Duration, f func(ctx context.Context) error) time.Duration {
	t.Helper()
	ctx, cancel := product.WithTimeout(t.Context(), within)
	defer cancel()
	var last error
	return product.Eventually(t, within, "the condition", func() error {
		err := f(ctx)
		if err != nil && ctx.Err() != nil && last != nil {
			return last // says more than that the time is over
		}
		last = err
		return err
	})
}

// parallel calls all functions, a few at a time, and joins their errors.
func parallel(n int, tasks ...func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(tasks))
	slots := make(chan struct{}, n)
	for i, f := range tasks {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = f()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
