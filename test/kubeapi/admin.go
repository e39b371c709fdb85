package kubeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// Group is the path of our own objects.
const Group = "/apis/network.edgemesh.io/v1alpha1/"

// Do sends a request as administrator; out may be nil. A refusal is an error with
// the server's words.
func (c *Cluster) Do(method, path string, in, out any) error {
	return request(c.admin, method, c.URL+path, "application/json", in, out)
}

// Patch merges in into the object at path, as administrator.
func (c *Cluster) Patch(path string, in any) error {
	return request(c.admin, http.MethodPatch, c.URL+path, "application/merge-patch+json", in, nil)
}

// Delete removes what is at path; that there is nothing is no error.
func (c *Cluster) Delete(path string) error {
	err := c.Do(http.MethodDelete, path, nil, nil)
	if err != nil && strings.Contains(err.Error(), "404") {
		return nil
	}
	return err
}

// CreateNode makes a Node with these blocks, as a kubelet and the cluster's
// allocator would.
func (c *Cluster) CreateNode(name string, podCIDRs ...string) error {
	spec := map[string]any{}
	if len(podCIDRs) > 0 {
		spec["podCIDR"], spec["podCIDRs"] = podCIDRs[0], podCIDRs
	}
	return c.Do(http.MethodPost, "/api/v1/nodes", map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}, "spec": spec,
	}, nil)
}

// CreateMember makes a Node and its MeshNode.
func (c *Cluster) CreateMember(name, peerID string, podCIDRs ...string) error {
	if err := c.CreateNode(name, podCIDRs...); err != nil {
		return err
	}
	return c.CreateMeshNode(name, peerID)
}

// CreateMeshNode makes a MeshNode without owner.
func (c *Cluster) CreateMeshNode(name, peerID string) error {
	return c.Do(http.MethodPost, Group+"meshnodes", map[string]any{
		"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "MeshNode",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"peerID": peerID},
	}, nil)
}

// CreateNetwork makes the PodNetwork.
func (c *Cluster) CreateNetwork(spec map[string]any) error {
	return c.Do(http.MethodPost, Group+"podnetworks", map[string]any{
		"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "PodNetwork",
		"metadata": map[string]any{"name": "cluster"}, "spec": spec,
	}, nil)
}

// AgentToken writes a token of the agent's service account to file, as a DaemonSet
// pod on that node gets it: bound to a pod, so that it names the node.
func (c *Cluster) AgentToken(node, file string, seconds int) error {
	pod := "agent-" + node
	err := c.Do(http.MethodPost, "/api/v1/namespaces/"+Namespace+"/pods", map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": pod},
		"spec": map[string]any{
			"nodeName": node, "serviceAccountName": "edgemesh-agent", "hostNetwork": true,
			"containers": []any{map[string]any{"name": "agent", "image": "edgemesh-agent"}},
		},
	}, nil)
	if err != nil && !strings.Contains(err.Error(), "409") {
		return err
	}
	var got struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if err := c.Do(http.MethodGet, "/api/v1/namespaces/"+Namespace+"/pods/"+pod, nil, &got); err != nil {
		return err
	}
	err = c.Do(http.MethodPost, "/api/v1/namespaces/"+Namespace+"/serviceaccounts/edgemesh-agent/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1",
		"kind":       "TokenRequest",
		"spec": map[string]any{
			"expirationSeconds": seconds,
			"boundObjectRef": map[string]any{
				"apiVersion": "v1",
				"kind":       "Pod",
				"name":       pod,
				"uid":        got.Metadata.UID,
			},
		},
	}, &got)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(got.Status.Token), 0o600)
}

// RelayToken writes a token of the relay's service account, bound to nothing.
func (c *Cluster) RelayToken(file string) error { return c.ServiceAccountToken("edgemesh-relay", file) }

// ServiceAccountToken writes a token of a service account, bound to nothing.
func (c *Cluster) ServiceAccountToken(name, file string) error {
	var got struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	err := c.Do(http.MethodPost, "/api/v1/namespaces/"+Namespace+"/serviceaccounts/"+name+"/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1",
		"kind":       "TokenRequest",
		"spec":       map[string]any{"expirationSeconds": 3600},
	}, &got)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(got.Status.Token), 0o600)
}

func postJSON(h *http.Client, url string, in, out any) error {
	return request(h, http.MethodPost, url, "application/json", in, out)
}

func request(h *http.Client, method, url, contentType string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", contentType)
	resp, err := h.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %d: %s", method, url, resp.StatusCode, data)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// Metrics is what kube-apiserver says of itself, in Prometheus' text format.
func (c *Cluster) Metrics() (string, error) {
	resp, err := c.admin.Get(c.URL + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// PIDs are the processes of kube-apiserver and etcd.
func (c *Cluster) PIDs() (api, etcd int) { return c.api.cmd.Process.Pid, c.etcd.cmd.Process.Pid }
