package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/test/tier"
)

// The networking part of critest, the runtimes' own test suite, with a real containerd and our network behind it: DNS configuration,
// hostname, the pod's port and a hostPort.
func TestCritest(t *testing.T) {
	tier.Long(t)
	m := newMachine(t, dualStack...)
	suite, program := m.path("critest"), m.path("program")
	for _, args := range [][]string{
		{"build", "-o", program, "."},
		{"test", "-c", "-vet=off", "-o", suite, "."},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = "../test/cni/testdata/critest"
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	const busybox, web = "registry.k8s.io/e2e-test-images/busybox:1.29-2", "edgemesh.test/web:1"
	for name, programs := range map[string][]string{busybox: {"bin/top", "bin/cat", "bin/hostname"}, web: {"bin/web"}} {
		image, err := imageArchive(name, program, programs...)
		if err != nil {
			t.Fatal(err)
		}
		file := m.path("image.tar")
		if err := os.WriteFile(file, image, 0o644); err != nil {
			t.Fatal(err)
		}
		m.must("ctr", "-a", m.path("sock"), "-n", "k8s.io", "images", "import", file)
	}
	images := m.path("images.yaml")
	if err := os.WriteFile(images, []byte("defaultTestContainerImage: "+busybox+"\nwebServerTestImage: "+web+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(suite, "-runtime-endpoint=unix://"+m.path("sock"), "-image-endpoint=unix://"+m.path("sock"),
		"-test-images-file="+images, "-ginkgo.focus=Networking", "-ginkgo.no-color", "-ginkgo.v")
	cmd.Dir = filepath.Dir(suite)
	var out []byte
	err := m.netns.Do(func(ns.NetNS) (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil || !strings.Contains(string(out), "4 Passed | 0 Failed") {
		t.Errorf("critest: %v, want 4 specs to pass\n%s", err, out)
	}
	if u, v := m.used(), m.veths(); len(u) != 0 || len(v) != 0 {
		t.Errorf("left: %v %v", u, v)
	}
}
