package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// containerd runs one of this test's own, without the parts that Kubernetes calls, and returns what calls ctr with it.
func containerd(t *testing.T) (dir string, ctr func(args ...string) ([]byte, error)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: containerd needs root")
	}
	for _, program := range []string{"containerd", "ctr"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("NOT TESTED: there is no " + program)
		}
	}
	dir = t.TempDir()
	socket := filepath.Join(dir, "s")
	config := filepath.Join(dir, "config.toml")
	// The plugin `opt` would make /opt/containerd.
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ntemp = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n"+
		"[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), filepath.Join(dir, "temp"), socket, filepath.Join(dir, "opt"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := exec.Command("containerd", "--config", config, "--log-level", "warn")
	c.Stdout, c.Stderr = &log, &log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- c.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("containerd does not end on SIGTERM")
			_ = c.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("containerd:\n%s", log.Bytes())
		}
	})
	ctr = func(args ...string) ([]byte, error) {
		return exec.CommandContext(t.Context(), "ctr", append([]string{"--address", socket}, args...)...).CombinedOutput()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // sleep: between looks, until the limit
		out, err := ctr("version")
		if err == nil {
			return dir, ctr
		}
		select {
		case why := <-ended:
			t.Fatalf("containerd ended: %v", why)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("containerd does not answer: %v: %s", err, out)
		}
	}
}

// A real containerd imports the archives, unpacks their layers, and has every file with its mode.
func imported(t *testing.T, dir string, images map[string]opened) {
	home, ctr := containerd(t)
	for name, img := range images {
		file := filepath.Join(dir, name+"-linux-"+runtime.GOARCH+".tar")
		if out, err := ctr("images", "import", "--snapshotter", "native", file); err != nil {
			t.Fatalf("import of %s: %v: %s", name, err, out)
		}
		roots, err := filepath.Glob(filepath.Join(home, "root", "io.containerd.snapshotter.v1.native", "snapshots", "*", bin, name))
		if err != nil || len(roots) != 1 {
			t.Fatalf("%s is unpacked in %v, %v", name, roots, err)
		}
		root := roots[0][:len(roots[0])-len("/"+bin+"/"+name)]
		for path, want := range img.files {
			file := filepath.Join(root, path)
			if want.link != "" {
				if got, err := os.Readlink(file); err != nil || got != want.link {
					t.Errorf("%s leads to %q, %v", path, got, err)
				}
				continue
			}
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want.data) {
				t.Errorf("%s differs: %v", path, err)
			}
			if info, err := os.Lstat(file); err != nil {
				t.Error(err)
			} else if info.Mode() != want.mode {
				t.Errorf("%s has mode %v, want %v", path, info.Mode(), want.mode)
			}
		}
	}
}
