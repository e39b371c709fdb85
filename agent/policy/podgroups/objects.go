package podgroups

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/membership/kube/api"
)

// Pod is a core/v1 Pod as far as policies need it: the rest of its JSON takes no memory.
type Pod struct {
	Meta   api.Meta
	Node   string
	Ready  bool
	Images []string // of containers of pods in the host's network that enforce, as far as their arguments say
	As     policy.Pod
	Daemon bool // a DaemonSet's
	Mirror bool // a static pod's: what stands in it is its kubelet's word
	Cut    bool // it names more ports than maxNamedPorts: policies do not know the last ones
}

// maxNamedPorts of a pod are known to policies.
const maxNamedPorts = 64

// Namespace is a core/v1 Namespace.
type Namespace struct {
	Meta   api.Meta
	Labels map[string]string
}

// Policy is a NetworkPolicy of networking.k8s.io/v1.
type Policy struct {
	Meta    api.Meta
	Written policy.NetworkPolicy
	Err     error // it cannot be decoded: Written closes its namespace
}

// Parse checks the policy.
func (p *Policy) Parse() (policy.Policy, error) {
	out, err := policy.Parse(p.Written)
	if p.Err != nil {
		err = fmt.Errorf("%w %s: %w", policy.ErrInvalid, Key(p), p.Err)
	}
	return out, err
}

// Pods are those of the cluster, or of one node where node is not "".
func Pods(node string) api.Kind {
	k := api.Kind{Name: "pods", Kind: "Pod", Foreign: true, New: func() api.Object { return new(Pod) }}
	if node != "" {
		k.Fields = "spec.nodeName=" + node
	}
	return k
}

// Namespaces are all of them.
func Namespaces() api.Kind {
	return api.Kind{Name: "namespaces", Kind: "Namespace", Foreign: true, New: func() api.Object { return new(Namespace) }}
}

// Policies are those of one namespace, or all of them where it is "".
func Policies(namespace string) api.Kind {
	return api.Kind{Name: "networkpolicies", Kind: "NetworkPolicy", Group: "networking.k8s.io", Version: "v1", Foreign: true, Namespace: namespace,
		New: func() api.Object { return new(Policy) }}
}

// Key names an object: NAMESPACE/NAME, or NAME.
func Key(o api.Object) string {
	m := o.Metadata()
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}

// Metadata implements api.Object.
func (p *Pod) Metadata() *api.Meta       { return &p.Meta }
func (n *Namespace) Metadata() *api.Meta { return &n.Meta }
func (p *Policy) Metadata() *api.Meta    { return &p.Meta }

var (
	_ api.Object = (*Pod)(nil)
	_ api.Object = (*Namespace)(nil)
	_ api.Object = (*Policy)(nil)
)

// container is what is read of one.
type container struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Ports   []struct {
		Name     string `json:"name"`
		Protocol string `json:"protocol"`
		Number   int32  `json:"containerPort"`
	} `json:"ports"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Pod) UnmarshalJSON(data []byte) error {
	var wire struct {
		Meta api.Meta `json:"metadata"`
		Spec struct {
			Node           string      `json:"nodeName"`
			HostNetwork    bool        `json:"hostNetwork"`
			Containers     []container `json:"containers"`
			InitContainers []container `json:"initContainers"` // some stay, as sidecars
		} `json:"spec"`
		Status struct {
			Phase      string          `json:"phase"`
			Conditions []api.Condition `json:"conditions"`
			IPs        []struct {
				IP string `json:"ip"`
			} `json:"podIPs"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	p.Node, p.Meta = wire.Spec.Node, bare(wire.Meta)
	p.Daemon = slices.ContainsFunc(wire.Meta.OwnerReferences, func(o api.OwnerReference) bool {
		return o.Controller && o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/")
	})
	_, p.Mirror = wire.Meta.Annotations["kubernetes.io/config.mirror"]
	p.As = policy.Pod{Namespace: wire.Meta.Namespace, Name: wire.Meta.Name, Labels: wire.Meta.Labels, HostNetwork: wire.Spec.HostNetwork,
		Ended: wire.Status.Phase == "Succeeded" || wire.Status.Phase == "Failed"}
	if c := api.FindCondition(wire.Status.Conditions, "Ready"); c != nil && c.Status == "True" {
		p.Ready = true
	}
	for _, c := range wire.Spec.Containers {
		if p.As.HostNetwork && enforces(append(c.Command, c.Args...)) {
			p.Images = append(p.Images, c.Image)
		}
	}
	for _, ip := range wire.Status.IPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" {
			p.As.Addrs = append(p.As.Addrs, a.Unmap())
		}
	}
	for _, c := range append(wire.Spec.Containers, wire.Spec.InitContainers...) {
		for _, port := range c.Ports {
			if protocol, known := policy.Protocol(cmp.Or(port.Protocol, "TCP")); known && port.Name != "" && port.Number > 0 && port.Number < 1<<16 {
				if p.Cut = p.Cut || len(p.As.Ports) == maxNamedPorts; p.Cut {
					return nil
				}
				p.As.Ports = append(p.As.Ports, policy.ContainerPort{NamedPort: policy.NamedPort{Name: port.Name, Protocol: protocol}, Number: uint16(port.Number)})
			}
		}
	}
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Namespace) UnmarshalJSON(data []byte) error {
	var wire struct {
		Meta api.Meta `json:"metadata"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	n.Meta, n.Labels = bare(wire.Meta), wire.Meta.Labels
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Policy) UnmarshalJSON(data []byte) error {
	var wire struct {
		Meta api.Meta `json:"metadata"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	p.Meta = bare(wire.Meta)
	p.Err = json.Unmarshal(data, &p.Written)
	if p.Err != nil { // a field of a type that does not fit closes the namespace
		p.Written = policy.NetworkPolicy{Spec: policy.Spec{PolicyTypes: []string{"Ingress", "Egress"}}}
	}
	p.Written.Metadata = policy.Metadata{Namespace: p.Meta.Namespace, Name: p.Meta.Name}
	return nil
}

// bare leaves what names an object and its version.
func bare(m api.Meta) api.Meta {
	return api.Meta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp}
}

// enforces reports whether a command does not say, as kube-router's can, that it enforces no policies.
func enforces(command []string) bool {
	out := true
	for _, word := range strings.Fields(strings.Join(command, " ")) { // a shell's, too
		if value, is := strings.CutPrefix(strings.Trim(word, `"'`), "--run-firewall="); is {
			on, err := strconv.ParseBool(strings.Trim(value, `"'`))
			out = on || err != nil
		}
	}
	return out
}
