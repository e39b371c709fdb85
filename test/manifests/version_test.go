package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/agent/kube/client"
)

// Old clusters are refused by the chart and by the script, with the reason.
func TestOldKubernetes(t *testing.T) {
	helm := tool(t, "helm")
	for version, taken := range map[string]bool{"v1.28.15": false, "v1.29.6+k3s1": false, "v1.30.14": false, "v" + client.MinVersion: true, "v1.35.4": true} {
		t.Run(version, func(t *testing.T) {
			if (client.TooOld(version) == nil) != taken {
				t.Errorf("agent: %v", client.TooOld(version))
			}
			_, err := command(t, helm, append([]string{"template", "x", chart, "--kube-version", version}, must()...)...)
			shown, _, _ := strings.Cut(version, "+") // as Helm has it
			refused(t, "chart", err, taken, shown)
			minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
			refused(t, "first-steps.sh", firstSteps(t, `{"major": "1", "minor": "`+minor+`+", "gitVersion": "`+version+`"}`, ""), taken, "1."+minor)
		})
	}
}

func refused(t *testing.T, who string, err error, taken bool, version string) {
	t.Helper()
	switch {
	case taken && err != nil:
		t.Errorf("%s: %v", who, err)
	case !taken && (err == nil || !strings.Contains(err.Error(), "Kubernetes "+version+", EdgeMesh needs 1.31") || !strings.Contains(err.Error(), "Upgrade the cluster")):
		t.Errorf("%s does not refuse, or does not say why: %v", who, err)
	}
}

// TestForeignNetwork: beside another pod network nothing is applied, unless that one keeps the pods.
func TestForeignNetwork(t *testing.T) {
	const version = `{"major": "1", "minor": "35"}`
	err := firstSteps(t, version, "kube-flannel kube-flannel-ds")
	if err == nil || !strings.Contains(err.Error(), "another pod network: kube-flannel/kube-flannel-ds") || !strings.Contains(err.Error(), "cniMode=keep") ||
		strings.Contains(err.Error(), "== ") {
		t.Errorf("beside Flannel: %v", err)
	}
	if err := firstSteps(t, version, "kube-system kube-proxy"); err != nil {
		t.Errorf("beside kube-proxy: %v", err)
	}
}

// firstSteps runs the script against a cluster that only says its version and its DaemonSets; everything else succeeds and
// prints nothing.
func firstSteps(t *testing.T, version, daemonSets string) error {
	t.Helper()
	dir := t.TempDir()
	kubectl := "#!/bin/sh\ncase \"$*\" in 'get --raw /version') echo '" + version + "' ;; 'get daemonsets'*) echo '" + daemonSets + "' ;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(root, "manifests/first-steps.sh"), "--pod-cidr", "10.244.0.0/16", "--relay", relayAddr, "--no-wait")
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "KUBECONFIG=/nonexistent")
	out, err := c.CombinedOutput()
	if err != nil {
		return &failed{err, string(out)}
	}
	return nil
}

// failed is a command's error with what it printed.
type failed struct {
	error
	out string
}

func (f *failed) Error() string { return f.error.Error() + ": " + f.out }
