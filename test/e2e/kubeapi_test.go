package e2e

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	netns "github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/test/kubeapi"
	"edgemesh/test/lab"
)

// kubernetes starts a real kube-apiserver, which the nodes reach at 127.0.0.1 as if it
// ran there. It returns an administrator's kubeconfig, too.
func kubernetes(t *testing.T, nodes ...*lab.Node) (c *kubeapi.Cluster, kubeconfig string) {
	t.Helper()
	c, err := kubeapi.New(t.TempDir())
	t.Cleanup(c.Stop)
	ok(t, err)
	for _, n := range nodes {
		inside(t, n.NS, strings.TrimPrefix(c.URL, "https://"))
	}
	return c, filepath.Join(c.Dir, "admin.conf")
}

// inside makes a TCP address of this process's namespace one of another namespace, too.
func inside(t *testing.T, ns *lab.NS, addr string) {
	t.Helper()
	var l net.Listener
	ok(t, netns.WithNetNSPath("/run/netns/"+ns.Full, func(netns.NetNS) (err error) { // the thread comes back: it may be the main one
		l, err = net.Listen("tcp", addr)
		return err
	}))
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			both := func() { in.Close(); out.Close() }
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					defer both()
					_, _ = io.Copy(way[0], way[1])
				}()
			}
		}
	})
}
