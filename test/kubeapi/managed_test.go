package kubeapi_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// ofService is what a service that runs a control plane refuses its customers.
const ofService = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: of-the-service}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*/*"], operations: [CREATE, UPDATE, DELETE], scope: Namespaced}]
  matchConditions: [{name: a-customer, expression: "!('system:masters' in request.userInfo.groups)"}]
  validations: [{expression: "false", message: this namespace is the service's}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: of-the-service}
spec: {policyName: of-the-service, validationActions: [Deny]}
`

// TestManaged: on an API server as a service would run it, whose operator is cluster-admin by RBAC alone and may write nothing in kube-system,
// and which shows no control-plane Node, the chart refuses until a node is chosen for the controller; then nodes join, under its guard.
func TestManaged(t *testing.T) {
	t.Parallel()
	c, err := kubeapi.New(t.TempDir())
	t.Cleanup(c.Stop)
	must(t, err)
	if c.Old() {
		t.Skip("the service's refusals are a policy, from 1.30 on")
	}
	_, err = c.KubectlStdin(ofService, "apply", "-f", "-")
	must(t, err, c.CreateNode("pool-1", "10.244.9.0/24"), c.CreateNode("edge-1", "10.244.1.0/24"), c.CreateNode("edge-2", "10.244.2.0/24"),
		c.Patch(nodesPath+"/pool-1", map[string]any{"metadata": map[string]any{"labels": map[string]string{"kubernetes.io/os": "linux"}}}),
		c.ServiceAccountCertificate("service", "operator"), c.Kubeconfig("operator.conf", "operator", c.URL))
	_, err = c.Kubectl("create", "clusterrolebinding", "operator", "--clusterrole=cluster-admin", "--user=system:serviceaccount:service:operator")
	must(t, err)
	operator := func(program string, args ...string) error {
		cmd := exec.Command(program, args...)
		cmd.Env = kubeapi.Environ("KUBECONFIG="+filepath.Join(c.Dir, "operator.conf"), "HOME="+c.Dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	helm, err := exec.Command(filepath.Join(c.Root, "build/tool.sh"), "helm").Output()
	must(t, err)
	kubectl := filepath.Join(c.Bin, "kubectl")
	install := func(namespace string) error {
		return operator(strings.TrimSpace(string(helm)), "upgrade", "--install", "edgemesh", filepath.Join(c.Root, "manifests/edgemesh"), "-n", namespace,
			"--set", "podNetwork.podCIDRs={10.244.0.0/16}", "--set", "podNetwork.relays={/ip4/203.0.113.5/tcp/4470/p2p/"+newPeerID(t)+"}")
	}
	must(t, operator(kubectl, "create", "namespace", kubeapi.Namespace))
	if err := install(kubeapi.Namespace); err == nil || !strings.Contains(err.Error(), "no Node may run the controller") || !strings.Contains(err.Error(), "kubectl label node") {
		t.Errorf("no node for the controller: %v", err)
	}
	if out, err := c.Kubectl("get", "clusterroles,daemonsets", "-A", "-o", "name"); err != nil || strings.Contains(out, "edgemesh") { // helm makes CRDs before it renders
		t.Errorf("a refused installation left %s, %v", out, err)
	}
	must(t, operator(kubectl, "label", "node", "pool-1", "node-restriction.kubernetes.io/edgemesh-controller="))
	fair.Eventually(t, patience, "the service refuses its own namespace", func() error {
		if err := operator(kubectl, "-n", "kube-system", "create", "configmap", "x"); err == nil || !strings.Contains(err.Error(), "this namespace is the service's") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	must(t, install(kubeapi.Namespace))

	impatient(t, c, false)
	for _, node := range []string{"edge-1", "edge-2"} {
		tokenAgent(t, c, node, c.URL).start()
	}
	one := login(t, c, "edge-1", "edge-1.conf")
	fair.Eventually(t, patience, "another's peer ID is refused", func() error {
		code, text := one.do(t, http.MethodPatch, meshNodesPath+"/edge-2", `{"spec":{"peerID":"`+newPeerID(t)+`"}}`)
		// Which of the policies answers first is the API server's choice; edge-2's own agent may have written its peer ID by then.
		if code != forbidden || !strings.Contains(text, "may not write what is of node edge-2") && !strings.Contains(text, "the peer ID of edge-2 may only change after") {
			return fmt.Errorf("%d: %s", code, text)
		}
		return nil
	})
	fair.Eventually(t, patience, "the controller keeps NodeRecords", func() error {
		out, err := c.Kubectl("get", "noderecords", "-o", "name")
		if err == nil && (!strings.Contains(out, "edge-1") || !strings.Contains(out, "edge-2")) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
}
