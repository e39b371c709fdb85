package kubeapi_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/agent/controller"
	"edgemesh/internal/logs"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// hangVar has the test's program run a controller: whose kubeconfig that is, and beside which the file hang names the loop to block.
const hangVar = "EDGEMESH_TEST_HANGS"

// hangs runs a controller whose loops can be blocked, until it ends itself.
func hangs(kubeconfig string) int {
	trigger := filepath.Join(filepath.Dir(kubeconfig), "hang")
	cfg := controller.Config{Kubeconfig: kubeconfig, Namespace: kubeapi.Namespace, Identity: "hangs",
		Block: func(loop string) {
			if name, err := os.ReadFile(trigger); err == nil && string(name) == loop && os.Remove(trigger) == nil {
				select {}
			}
		}}
	cfg.Log, _ = logs.New(os.Stderr, logs.Config{}, false)
	if err := controller.Run(context.Background(), cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 3 // it does not end by itself
}

// TestHungController blocks a loop of the leader: it is named and the process ends itself within 35 s, and what it did is done again 45 s
// after it hung at most.
func TestHungController(t *testing.T) {
	t.Parallel() // it mostly waits
	c := emptyCluster(t)
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/16"}})
	token, conf := filepath.Join(c.Dir, "controller-token"), filepath.Join(t.TempDir(), "controller.conf")
	must(t, c.Delete(leasePath), c.ServiceAccountToken("edgemesh-controller", token), c.TokenKubeconfig("hangs.conf", token, c.URL))
	text, err := os.ReadFile(filepath.Join(c.Dir, "hangs.conf"))
	must(t, err, os.WriteFile(conf, text, 0o600))
	var p *exec.Cmd
	var log bytes.Buffer
	ended := make(chan struct{})
	start := func() {
		p = exec.Command(os.Args[0])
		p.Env = append(os.Environ(), hangVar+"="+conf)
		p.Stderr, p.SysProcAttr = &log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must(t, p.Start())
		go func() { _ = p.Wait(); ended <- struct{}{} }()
	}
	start()
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may just have ended
		<-ended
		if t.Failed() {
			t.Log(log.String()[max(0, log.Len()-8<<10):])
		}
	})
	recorded := func(node string) func() error {
		return func() error { return c.Do(http.MethodGet, recordsPath+"/"+node, nil, nil) }
	}
	must(t, c.CreateNode("before", "10.244.1.0/24"))
	fair.Eventually(t, patience, "the controller records a Node", recorded("before"))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(conf), "hang"), []byte("NodeRecords"), 0o600), c.CreateNode("after", "10.244.2.0/24"))
	clock := fair.Start()
	defer clock.Stop()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("it did not end itself")
	}
	named := clock.Elapsed()
	if code := p.ProcessState.ExitCode(); code != 1 || named > 35*time.Second {
		t.Errorf("it ended itself after %v with exit code %d", named, code)
	}
	if n := strings.Count(log.String(), "loops hang: they have work and make no progress"); n != 1 || !strings.Contains(log.String(), "NodeRecords") || !strings.Contains(log.String(), "goroutine ") {
		t.Errorf("the loop is named %d times; log: %s", n, log.String())
	}
	time.Sleep(time.Second) // sleep: what kubelet takes, at least
	start()
	fair.Eventually(t, patience, "the next one records the Node", recorded("after"))
	took := clock.Elapsed()
	if t.Logf("ended after %v; the Node is recorded after %v", named, took); took > 45*time.Second {
		t.Errorf("the Node was recorded %v after the loop hung", took)
	}
}
