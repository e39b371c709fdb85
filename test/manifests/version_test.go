package manifests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/client"
)

// Old clusters are refused by the chart and by the script, with the reason.
func TestOldKubernetes(t *testing.T) {
	helm := tool(t, "helm")
	for version, taken := range map[string]bool{"v1.27.16": false, "v1.26.6+k3s1": false, "v1.28.15": true, "v1.29.14+k3s1": true, "v1.30.14": true, "v" + client.MinVersion: true, "v1.35.4": true} {
		t.Run(version, func(t *testing.T) {
			if (client.TooOld(version) == nil) != taken {
				t.Errorf("agent: %v", client.TooOld(version))
			}
			_, err := command(t, helm, append([]string{"template", "x", chart, "--kube-version", version}, must()...)...)
			shown, _, _ := strings.Cut(version, "+") // as Helm has it
			refused(t, "chart", err, taken, shown)
			minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
			refused(t, "first-steps.sh", firstSteps(t, map[string]string{"get --raw /version": `{"major": "1", "minor": "` + minor + `+", "gitVersion": "` + version + `"}`}), taken, "1."+minor)
		})
	}
}

// Each version gets what its API server knows, and 1.28 and 1.29 are not left without a guard.
func TestGuards(t *testing.T) {
	helm := tool(t, "helm")
	for version, want := range map[string]string{
		"v1.28.15": "webhooks 6, policies 0, of ranges 0, controllers that serve 1", "v1.29.14": "webhooks 6, policies 0, of ranges 0, controllers that serve 1",
		"v1.30.14": "webhooks 0, policies 9, of ranges 0, controllers that serve 0", "v1.31.0": "webhooks 0, policies 10, of ranges 11, controllers that serve 0",
		"v1.35.4": "webhooks 0, policies 10, of ranges 11, controllers that serve 0",
	} {
		out, err := command(t, helm, append([]string{"template", "x", chart, "--kube-version", version}, must()...)...)
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		got := fmt.Sprintf("webhooks %d, policies %d, of ranges %d, controllers that serve %d", strings.Count(out, "admissionReviewVersions"),
			strings.Count(out, "kind: ValidatingAdmissionPolicy\n"), strings.Count(out, ".containsIP("), strings.Count(out, "--webhook=:9472"))
		// A controller that guards has to run where no Node is ready yet, and shows its metrics at one address of the node alone.
		for _, text := range []string{"{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}",
			"{key: node.kubernetes.io/network-unavailable, operator: Exists, effect: NoSchedule}", `"--metrics-address=[$(POD_IP)]:9471"`} {
			if got, serve := strings.Count(out, text), strings.Count(out, "--webhook="); got != serve {
				t.Errorf("%s: %d controllers serve, %d with %s", version, serve, got, text)
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
	alone := append([]string{"template", "x", chart, "--kube-version", "v1.29.14", "--set", "controller.enabled=false"}, must()...)
	if _, err := command(t, helm, alone...); err == nil || !strings.Contains(err.Error(), "podNetwork.trustedNodes") {
		t.Errorf("no controller and no policies: %v", err)
	}
	if out, err := command(t, helm, append(alone, "--set", "podNetwork.trustedNodes=true")...); err != nil || !strings.Contains(out, "trustedNodes: true") {
		t.Errorf("trusted nodes: %v", err)
	}
}

// Before 1.31 the script installs the chart alone, which has what the API server takes: it refuses before it changes anything what helm did not make.
func TestFirstStepsOfOldKubernetes(t *testing.T) {
	for minor, chart := range map[string]bool{"28": true, "29+": true, "30": true, "31": false, "35": false} {
		says := map[string]string{"get --raw /version": `{"major": "1", "minor": "` + minor + `"}`}
		says["get daemonsets"] = "kube-system edgemesh-agent <none>" // by kubectl apply -f edgemesh.yaml
		err := firstSteps(t, says)
		if chart != (err != nil && strings.Contains(err.Error(), "--take-ownership") && !strings.Contains(err.Error(), "CHANGED")) {
			t.Errorf("1.%s beside the plain manifests: %v", minor, err)
		}
	}
}

// After an upgrade from 1.29 the script says what to do where the API server does not say since when it runs; it waits for nothing that never comes.
func TestFirstStepsWithoutMetrics(t *testing.T) {
	says := map[string]string{"get --raw /version": `{"major": "1", "minor": "30"}`, "get validatingwebhookconfigurations edgemesh": "edgemesh"}
	if err := firstSteps(t, says); err == nil || !strings.Contains(err.Error(), "If that is more than an hour, add --tokens-renewed") || strings.Contains(err.Error(), "again in") {
		t.Errorf("without /metrics: %v", err)
	}
	says["get --raw /metrics"] = fmt.Sprintf("process_start_time_seconds %d", time.Now().Add(-20*time.Minute).Unix())
	if err := firstSteps(t, says); err == nil || !strings.Contains(err.Error(), "upgraded to 1.30 20 minutes ago") || !strings.Contains(err.Error(), "again in 40 minutes") {
		t.Errorf("20 minutes after: %v", err)
	}
}

func refused(t *testing.T, who string, err error, taken bool, version string) {
	t.Helper()
	switch {
	case taken && err != nil:
		t.Errorf("%s: %v", who, err)
	case !taken && (err == nil || !strings.Contains(err.Error(), "Kubernetes "+version+", EdgeMesh needs 1.28") || !strings.Contains(err.Error(), "Upgrade the cluster")):
		t.Errorf("%s does not refuse, or does not say why: %v", who, err)
	}
}

// TestForeignNetwork: beside another pod network nothing is changed, unless that one keeps the pods.
func TestForeignNetwork(t *testing.T) {
	const k3sNode = `["server","--cluster-init"] vxlan`
	for name, x := range map[string]struct {
		says map[string]string // of kubectl
		args []string
		want string // the other network; "" where it is no hindrance
	}{
		"Flannel":                {map[string]string{"get daemonsets": "kube-flannel kube-flannel-ds <none>"}, nil, "kube-flannel/kube-flannel-ds"},
		"a namespace to be made": {map[string]string{"get daemonsets": "kube-flannel kube-flannel-ds <none>"}, []string{"--namespace", "mesh"}, "kube-flannel/kube-flannel-ds"},
		"Amazon's":               {map[string]string{"get daemonsets": "kube-system aws-node <none>"}, nil, "kube-system/aws-node"},
		"k3s's Flannel":          {map[string]string{"get nodes": k3sNode}, nil, "k3s's own Flannel"},
		"k3s without Flannel":    {map[string]string{"get nodes": `["server","--flannel-backend","none"] vxlan`}, nil, ""},
		"kube-proxy alone":       {map[string]string{"get daemonsets": "kube-system kube-proxy <none>", "get nodes": " "}, nil, ""},
		"kept":                   {map[string]string{"get daemonsets": "kube-flannel kube-flannel-ds <none>"}, []string{"--set", "agent.cniMode=keep"}, ""},
		"kept by an earlier run": {map[string]string{"get daemonsets": "a cilium <none>\nkube-system edgemesh-agent edgemesh", "-n kube-system get configmap edgemesh-agent": "cniMode: keep"}, nil, ""},
		"no longer kept":         {map[string]string{"get daemonsets": "a cilium <none>", "-n kube-system get configmap edgemesh-agent": "cniMode: keep"}, []string{"--set", "agent.cniMode=own"}, "a/cilium"},
		"kept on single nodes":   {map[string]string{"get nodes": k3sNode}, []string{"--set", "agent.nodes.a.cniMode=keep"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x.says["get --raw /version"] = `{"major": "1", "minor": "35"}`
			err := firstSteps(t, x.says, x.args...)
			switch {
			case x.want == "" && err != nil:
				t.Error(err)
			case x.want != "" && (err == nil || !strings.Contains(err.Error(), "another pod network: "+x.want) || !strings.Contains(err.Error(), "cniMode=keep") ||
				strings.Contains(err.Error(), "CHANGED")):
				t.Errorf("not refused, or not before something was changed: %v", err)
			}
		})
	}
}

// firstSteps runs the script against a cluster whose kubectl says this to commands that begin so. All else succeeds and
// prints nothing, and what would change something is noted in the error's text.
func firstSteps(t *testing.T, says map[string]string, args ...string) error {
	t.Helper()
	_, err := stepsOutput(t, says, append([]string{"--relay", relayAddr, "--no-wait"}, args...)...)
	return err
}

// stepsOutput does that with no arguments but these, and returns what was printed, changes among it.
func stepsOutput(t *testing.T, says map[string]string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	kubectl := "#!/bin/sh\ncase \"$*\" in\n"
	for command, text := range says {
		kubectl += "'" + command + "'*) printf '%b\\n' '" + strings.ReplaceAll(text, "'", `'\''`) + "' ;;\n"
	}
	kubectl += "*create*|*apply*|*patch*|*label*|*delete*) echo CHANGED by kubectl $* >&2 ;;\nesac\n"
	for name, text := range map[string]string{"kubectl": kubectl, "helm": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(filepath.Join(root, "manifests/first-steps.sh"), append([]string{"--pod-cidr", "10.244.0.0/16"}, args...)...)
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "KUBECONFIG=/nonexistent")
	out, err := c.CombinedOutput()
	if err != nil {
		return "", &failed{err, string(out)}
	}
	return string(out), nil
}

// TestRelayAddresses: only what the relay's own pod prints, line by line an address, goes into the pod network. A mirror pod with the relay's
// labels, which any kubelet can make, is not asked, and words that would add to the JSON are no address.
func TestRelayAddresses(t *testing.T) {
	const hostile = `/ip4/198.51.100.9/tcp/1/p2p/x"], "encryption": "auto", "relays": ["/ip4/198.51.100.9`
	says := map[string]string{
		"get --raw /version":                            `{"major": "1", "minor": "35"}`,
		"-n kube-system get deployment edgemesh-relay":  "deployment-uid",
		"-n kube-system get replicasets":                "other-uid other-set\ndeployment-uid relay-set",
		"-n kube-system get pods":                       "other-set thief\nrelay-set edgemesh-relay-1",
		"-n kube-system logs edgemesh-relay-1":          hostile + `\n` + relayAddr + `\n` + relayAddr + `"\n/ip4/10.0.0.1/tcp/4470/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA`,
		"-n kube-system logs deployment/edgemesh-relay": hostile,
		"-n kube-system logs thief":                     "/ip4/198.51.100.9/tcp/4470/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA",
	}
	out, err := stepsOutput(t, says, "--relay-node", "cloud")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, `"relays": ["`+relayAddr+`"]}`) || strings.Contains(out, "198.51.100.9") || strings.Contains(out, "10.0.0.1/") {
		t.Errorf("the pod network:\n%s", out)
	}
	for _, bad := range [][]string{{"--relay", hostile}, {"--relay", "/ip4/203.0.113.5/tcp/4470"}, {"--pod-cidr", `10.0.0.0/8"`}, {"--announce", `1.2.3.4"`}} {
		if out, err := stepsOutput(t, says, append(bad, "--no-wait")...); err == nil || !strings.Contains(err.Error(), "first-steps.sh: "+bad[0]) || strings.Contains(out, "CHANGED") {
			t.Errorf("%v is not refused: %v", bad, err)
		}
	}
}

// failed is a command's error with what it printed.
type failed struct {
	error
	out string
}

func (f *failed) Error() string { return f.error.Error() + ": " + f.out }

// relayProgram is the relay's program: that in bin if EDGEMESH_NOBUILD says that it is new.
func relayProgram(t *testing.T) string {
	t.Helper()
	if os.Getenv("EDGEMESH_NOBUILD") != "" {
		return filepath.Join(root, "bin", "edgemesh-relay")
	}
	bin := filepath.Join(t.TempDir(), "relay")
	if out, err := exec.Command("go", "build", "-o", bin, root+"/relay").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}
