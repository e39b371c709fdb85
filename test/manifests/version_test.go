package manifests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
			trust := []string{"--set", "podNetwork.trustedNodes=true"} // TestTrustedNodes has these versions without it
			_, err := command(t, helm, append(append([]string{"template", "x", chart, "--kube-version", version}, trust...), must()...)...)
			shown, _, _ := strings.Cut(version, "+") // as Helm has it
			refused(t, "chart", err, taken, shown)
			minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
			refused(t, "first-steps.sh", firstSteps(t, map[string]string{"get --raw /version": `{"major": "1", "minor": "` + minor + `+", "gitVersion": "` + version + `"}`}, trust...), taken, "1."+minor)
		})
	}
}

// Each version gets the policies that its API server knows.
func TestGuards(t *testing.T) {
	helm := tool(t, "helm")
	for version, want := range map[string]string{"v1.29.14": "policies 0, of ranges 0", "v1.30.14": "policies 9, of ranges 0", "v1.31.0": "policies 10, of ranges 11",
		"v1.35.4": "policies 10, of ranges 11"} {
		out, err := command(t, helm, append([]string{"template", "x", chart, "--kube-version", version, "--set", "podNetwork.trustedNodes=true"}, must()...)...)
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		if got := fmt.Sprintf("policies %d, of ranges %d", strings.Count(out, "kind: ValidatingAdmissionPolicy\n"), strings.Count(out, ".containsIP(")); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

// Where nothing guards the objects chart and script refuse, before they change anything, until every node is trusted with that.
func TestTrustedNodes(t *testing.T) {
	helm := tool(t, "helm")
	for minor, guarded := range map[string]bool{"28": false, "29+": false, "30": true, "35": true} {
		says := map[string]string{"get --raw /version": `{"major": "1", "minor": "` + minor + `"}`}
		version := "v1." + strings.TrimSuffix(minor, "+") + ".1"
		for _, controller := range []string{"true", "false"} {
			for _, trusted := range []bool{false, true} {
				set := []string{"--set", "controller.enabled=" + controller}
				if trusted {
					set = append(set, "--set", "podNetwork.trustedNodes=true")
				}
				out, err := command(t, helm, append(append([]string{"template", "x", chart, "--kube-version", version}, set...), must()...)...)
				if untrusted(err) == (guarded || trusted) || trusted && !strings.Contains(out, "trustedNodes: true") {
					t.Errorf("chart, %s %v: %v", version, set, err)
				}
				if err := firstSteps(t, says, set...); untrusted(err) == (guarded || trusted) {
					t.Errorf("first-steps.sh, %s %v: %v", version, set, err)
				}
			}
		}
		says["get podnetwork cluster --ignore-not-found -o jsonpath={.spec.trustedNodes}"] = "true"
		if err := firstSteps(t, says); err != nil {
			t.Errorf("first-steps.sh again, %s: %v", version, err)
		}
	}
}

// untrusted reports whether err is the refusal of untrusted nodes, with key, risk and way out, before anything was changed.
func untrusted(err error) bool {
	if err == nil {
		return false
	}
	for _, text := range []string{"podNetwork.trustedNodes=true", "write the others' peer IDs and take their traffic", "Upgrade the cluster to 1.30"} {
		if !strings.Contains(err.Error(), text) {
			return false
		}
	}
	return !strings.Contains(err.Error(), "CHANGED")
}

// Before 1.31 the script installs the chart alone, which has what the API server takes: it refuses before it changes anything what helm did not make.
func TestFirstStepsOfOldKubernetes(t *testing.T) {
	for minor, chart := range map[string]bool{"28": true, "29+": true, "30": true, "31": false, "35": false} {
		says := map[string]string{"get --raw /version": `{"major": "1", "minor": "` + minor + `"}`}
		says["get daemonsets"] = "kube-system edgemesh-agent <none>" // by kubectl apply -f edgemesh.yaml
		says["get podnetwork cluster --ignore-not-found -o jsonpath={.spec.trustedNodes}"] = "true"
		err := firstSteps(t, says)
		if chart != (err != nil && strings.Contains(err.Error(), "--take-ownership") && !strings.Contains(err.Error(), "CHANGED")) {
			t.Errorf("1.%s beside the plain manifests: %v", minor, err)
		}
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
			if flannel := strings.Contains(strings.ToLower(x.want), "flannel"); x.want != "" && err != nil && strings.Contains(err.Error(), "move over: docs/migrate.md") != flannel {
				t.Errorf("the way over: %v", err)
			}
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
		"get nodes -o":                                  `\033[31m"$(touch /tmp/x)" \033]0;x`, // annotations of a Node, as its kubelet writes them
		"get nodes -l":                                  "node/cloud",
		"-n kube-system logs thief":                     "/ip4/198.51.100.9/tcp/4470/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA",
	}
	out, err := stepsOutput(t, says, "--relay-node", "cloud")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, `"relays": ["`+relayAddr+`"]}`) || strings.Contains(out, "198.51.100.9") || strings.Contains(out, "10.0.0.1/") ||
		strings.ContainsAny(out, "\x1b`") || strings.Contains(out, "touch") {
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
		bin, err := filepath.Abs(filepath.Join(root, "bin", "edgemesh-relay"))
		if err != nil {
			t.Fatal(err)
		}
		return bin
	}
	bin := filepath.Join(t.TempDir(), "relay")
	if out, err := exec.Command("go", "build", "-o", bin, root+"/relay").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}
