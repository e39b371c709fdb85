package main_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
)

// referencePlugins builds real plugins, pinned in ../test/cni/testdata/plugins, beside ours: those named, or all that a test uses.
func referencePlugins(t *testing.T, names ...string) string {
	t.Helper()
	if names == nil {
		names = []string{"ipam/host-local", "main/bridge", "main/loopback", "meta/bandwidth", "meta/firewall", "meta/portmap", "meta/sbr", "meta/tuning", "meta/vrf"}
	}
	cmd := exec.Command("go", "build", "-o", binDir+"/")
	for _, n := range names {
		cmd.Args = append(cmd.Args, "github.com/containernetworking/plugins/plugins/"+n)
	}
	cmd.Dir = "../test/cni/testdata/plugins"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the reference plugins: %v\n%s", err, out)
	}
	return binDir
}

// serve answers each TCP connection in netns with the client's address.
func serve(t *testing.T, netns ns.NetNS, addr string) {
	t.Helper()
	listen(t, netns, addr, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_, _ = c.Write([]byte(host))
	})
}

// listen has each TCP connection in netns answered, one after the other.
func listen(t *testing.T, netns ns.NetNS, addr string, answer func(net.Conn)) {
	t.Helper()
	var l net.Listener
	err := netns.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

// reach returns what a server of serve says.
func reach(netns ns.NetNS, addr string) (from string, err error) {
	err = netns.Do(func(ns.NetNS) error {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		b, err := io.ReadAll(c)
		from = string(b)
		return err
	})
	return from, err
}

// A node moves over from the reference bridge and host-local, running pods
// included: nobody's address is given away, and pods come back with theirs.
func TestMigrateFromHostLocal(t *testing.T) {
	t.Parallel()
	refs := referencePlugins(t, "ipam/host-local", "main/bridge")
	n := newNode(t, "10.244.1.0/24")
	oldData, results := filepath.Join(t.TempDir(), "networks"), filepath.Join(t.TempDir(), "cache")
	old, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"cbr0","plugins":[
		{"type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"subnet":"10.244.1.0/24"}}]}`, oldData))
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{refs}, results, nil)
	for i := range 3 {
		rt := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("old-%d", i), NetNS: newNS(t).Path(), IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", fmt.Sprintf("web-%d", i)}}}
		err := n.netns.Do(func(ns.NetNS) error {
			_, err := cni.AddNetworkList(context.Background(), old, rt)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	err = n.netns.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command(n.plugin, "ipam", "import", filepath.Join(oldData, "cbr0"), "--data-dir", n.data,
			"--runtime-dir", n.run, "--results", filepath.Join(results, "results")).CombinedOutput()
		return err
	})
	if err != nil || !strings.Contains(string(out), "3 records") {
		t.Fatalf("import: %v %s", err, out)
	}
	wantEqual(t, "a new pod beside the old ones", n.add("new").addrs(), []string{"10.244.1.5"})
	for i := range 3 {
		p := n.add(fmt.Sprintf("web-%d", i))
		wantEqual(t, p.name+" on the new network", p.addrs(), []string{fmt.Sprintf("10.244.1.%d", i+2)})
	}
}
