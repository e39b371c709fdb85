package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"edgemesh/internal/wake"
)

// dict is an object of the API.
type dict = map[string]any

// testPod is what is read of a pod of the test.
type testPod struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase, PodIP, Message string
		PodIPs                []struct{ IP string }
		ContainerStatuses     []struct {
			State struct {
				Waiting    *struct{ Reason, Message string }
				Terminated *struct{ Message, Reason string }
			}
		}
	}
}

// ended reports whether it is over.
func (p testPod) ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// message is what its container has left.
func (p testPod) message() string {
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return c.State.Terminated.Message
		}
	}
	return ""
}

// why says in what state it is.
func (p testPod) why() string {
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return cmp.Or(w.Reason+": "+w.Message, "waiting")
		}
		if x := c.State.Terminated; x != nil {
			return x.Reason + " " + x.Message
		}
	}
	return cmp.Or(p.Status.Message, p.Status.Phase, "it was never seen")
}

// Namespace holds a test.
func Namespace() []any {
	return []any{dict{"apiVersion": "v1", "kind": "Namespace", "metadata": dict{"name": testNamespace,
		"labels": dict{"pod-security.kubernetes.io/enforce": "restricted"}}}}
}

func serviceName(i int) string { return fmt.Sprintf("s%d", i) }

// Server is the pod that answers on a node, and its Service.
func Server(i int, node, image string) []any {
	name := dict{"edgemesh-test": fmt.Sprintf("serve-%d", i)}
	return []any{
		pod("serve", i, node, image, "connectivity", "serve"),
		dict{"apiVersion": "v1", "kind": "Service", "metadata": dict{"name": serviceName(i), "namespace": testNamespace},
			"spec": dict{"selector": name, "ports": []any{dict{"port": TestPort, "protocol": "TCP"}}}},
	}
}

// Client is the pod that queries all targets from a node.
func Client(i int, node, image string, targets []string) []any {
	args := append([]string{"connectivity", "try", "--file", "/dev/termination-log"}, targets...)
	return []any{pod("try", i, node, image, args...)}
}

// pod runs a command of the agent's image on a node, whatever its taints, and without rights.
func pod(role string, i int, node, image string, args ...string) dict {
	name := fmt.Sprintf("%s-%d", role, i)
	return dict{"apiVersion": "v1", "kind": "Pod",
		"metadata": dict{"name": name, "namespace": testNamespace, "labels": dict{"edgemesh-test": name, "edgemesh-role": role}},
		"spec": dict{"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"enableServiceLinks": false, "tolerations": []any{dict{"operator": "Exists"}},
			"securityContext": dict{"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": dict{"type": "RuntimeDefault"}},
			"containers": []any{dict{"name": "test", "image": image, "imagePullPolicy": "IfNotPresent", "args": args,
				"securityContext": dict{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": dict{"drop": []string{"ALL"}}},
				"resources":       dict{"requests": dict{"cpu": "10m", "memory": "32Mi"}}}}}}
}

// create makes objects.
func (t *test) create(ctx context.Context, objects []any) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	in, err := json.Marshal(dict{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	c := t.command(ctx, "create", "-f", "-")
	var complaint bytes.Buffer
	c.Stdin, c.Stderr = bytes.NewReader(in), &bounded{to: &complaint, left: maxAnswer, most: errTooLong}
	if err := c.Run(); err != nil {
		return fmt.Errorf("kubectl create: %s", cmp.Or(said(complaint.String()), err.Error()))
	}
	return nil
}

// remove deletes the test, also where ctx has ended; it does not wait for the end.
func (t *test) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if _, err := t.output(ctx, "delete", "namespace", testNamespace, "--wait=false"); err != nil {
		return fmt.Errorf("clean up: %w; kubectl delete namespace %s", err, testNamespace)
	}
	return nil
}

// await looks at the pods of a role until so many of them are good, or have ended, or for so long. It returns those that
// exist, by node.
func (t *test) await(ctx context.Context, role string, n int, patience time.Duration, good func(testPod) bool) (map[string]testPod, error) {
	deadline, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var pods struct{ Items []testPod }
		one, stop := context.WithTimeout(ctx, t.timeout)
		err := t.list(one, &pods, "get", "pods", "-n", testNamespace, "-l", "edgemesh-role="+role)
		stop()
		out := map[string]testPod{}
		done := err == nil && len(pods.Items) >= n
		for _, p := range pods.Items {
			out[p.Spec.NodeName] = p
			done = done && (good(p) || p.ended())
		}
		switch {
		case done:
			return out, nil
		case ctx.Err() != nil:
			return nil, errors.New("interrupted")
		case deadline.Err() != nil && err != nil:
			return nil, err
		case deadline.Err() != nil:
			return out, nil // those that are not good are named
		}
		wake.Sleep(deadline, pollEvery)
	}
}

// services are the addresses of the Services, by name.
func (t *test) services(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var all struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ ClusterIP string }
		}
	}
	if err := t.list(ctx, &all, "get", "services", "-n", testNamespace); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, s := range all.Items {
		out[s.Metadata.Name] = s.Spec.ClusterIP
	}
	return out, nil
}
