package enforce

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"strings"
	"sync"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"edgemesh/agent/policy"
	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/file"
)

// maxFile bounds the file of policies, in bytes.
const maxFile = 4 << 20

// object is a Pod of the file.
type object struct {
	Metadata policy.Metadata `json:"metadata"`
	Spec     struct {
		HostNetwork bool `json:"hostNetwork"`
		Containers  []struct {
			Ports []struct {
				Name          string `json:"name"`
				Protocol      string `json:"protocol"`
				ContainerPort uint16 `json:"containerPort"`
			} `json:"ports"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP netip.Addr `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

// written is what the file says.
type written struct {
	policies   []policy.Policy
	namespaces map[string]map[string]string
	pods       []policy.Pod
}

// parseFile reads documents of kind NetworkPolicy, Namespace and Pod. Every key of a policy's spec must be known; of the others only
// labels, names of ports and addresses count. The error names each document that is wrong.
func parseFile(path string) (out written, err error) {
	f, err := strict.Open(path, maxFile)
	if err != nil {
		return out, err
	}
	defer f.Close()
	out.namespaces = map[string]map[string]string{}
	var errs []error
	seen := map[string]int{}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(f))
	for i := 1; ; i++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			out.named()
			return out, errors.Join(errs...)
		}
		if err != nil {
			return out, fmt.Errorf("%s: %w", path, err)
		}
		if err := out.add(text, i, seen); err != nil {
			errs = append(errs, fmt.Errorf("%s: document %d: %w", path, i, err))
		}
	}
}

// named adds namespaces that Pods and NetworkPolicies name, and that have no document: their name is known.
func (w *written) named() {
	add := func(name string) {
		if _, has := w.namespaces[name]; !has {
			w.namespaces[name] = map[string]string{nameLabel: name}
		}
	}
	for _, p := range w.pods {
		add(p.Namespace)
	}
	for _, p := range w.policies {
		add(p.Namespace)
	}
}

// nameLabel is what API servers give each namespace.
const nameLabel = "kubernetes.io/metadata.name"

// add reads one document.
func (w *written) add(text []byte, number int, seen map[string]int) error {
	var head *struct {
		Kind     string          `json:"kind"`
		Metadata policy.Metadata `json:"metadata"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil || head == nil { // nothing but remarks
		return err
	}
	m := head.Metadata
	name := strings.Trim(m.Namespace+"/"+m.Name, "/")
	if first, twice := seen[head.Kind+" "+name]; twice {
		return fmt.Errorf("%s %s is document %d, too: remove one", head.Kind, name, first)
	}
	seen[head.Kind+" "+name] = number
	switch head.Kind {
	case "Namespace":
		l := maps.Clone(m.Labels)
		if l == nil {
			l = map[string]string{}
		}
		l[nameLabel] = m.Name
		w.namespaces[m.Name] = l
	case "Pod":
		var o object
		if err := yaml.Unmarshal(text, &o); err != nil {
			return fmt.Errorf("%s %s: %w", head.Kind, name, err)
		}
		w.pods = append(w.pods, o.pod())
	case "NetworkPolicy":
		var spec policy.Spec
		err := strictly(text, &spec)
		if err != nil {
			return fmt.Errorf("%s %s: %w", head.Kind, name, err)
		}
		p, err := policy.Parse(policy.NetworkPolicy{Metadata: m, Spec: spec})
		w.policies = append(w.policies, p)
		return err
	case "ClusterNetworkPolicy":
		return fmt.Errorf("%s %s: this kind is not enforced: podDenyCIDRs in cluster.yaml denies metadata addresses and LANs; use NetworkPolicy for the rest", head.Kind, name)
	default:
		return fmt.Errorf("kind: %q is not one of NetworkPolicy, Namespace and Pod", head.Kind)
	}
	if m.Name == "" || head.Kind == "Pod" && m.Namespace == "" {
		return fmt.Errorf("%s: metadata: it needs a name, and a Pod a namespace", head.Kind)
	}
	return nil
}

// strictly reads the spec of a document, every key of which must be known.
func strictly(text []byte, spec any) error {
	return yaml.UnmarshalStrict(text, &struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   any    `json:"metadata"`
		Spec       any    `json:"spec"`
		Status     any    `json:"status"`
	}{Spec: spec})
}

// pod is what policies need of a Pod.
func (o object) pod() policy.Pod {
	out := policy.Pod{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: o.Metadata.Labels, HostNetwork: o.Spec.HostNetwork,
		Ended: o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed"}
	for _, a := range o.Status.PodIPs {
		out.Addrs = append(out.Addrs, a.IP)
	}
	for _, c := range o.Spec.Containers {
		for _, p := range c.Ports {
			protocol, _ := policy.Protocol(cmp.Or(p.Protocol, "TCP")) // 0 for any other
			out.Ports = append(out.Ports, policy.ContainerPort{NamedPort: policy.NamedPort{Name: p.Name, Protocol: protocol}, Number: p.ContainerPort})
		}
	}
	return out
}

// rules compiles the file for all pods that it lists; those of this node have the addresses of their records, too.
func (w written) rules(local map[netip.Addr]string) policy.Rules {
	pods := append([]policy.Pod{}, w.pods...)
	for i, p := range pods {
		addrs := append([]netip.Addr{}, p.Addrs...)
		for a, name := range local {
			if name == p.Namespace+"/"+p.Name {
				addrs = append(addrs, a)
			}
		}
		pods[i].Addrs = addrs
	}
	return policy.Compile(w.policies, pods, func(g policy.Group) []policy.Member { return g.Members(w.namespaces, pods) })
}

// SetFile has the policies of a file in force, "": none. The file has been read when it returns, and is reread until another is set.
func (o *Owner) SetFile(path string) {
	o.mu.Lock()
	same := o.file != nil && *o.file == path
	o.file = &path
	o.mu.Unlock()
	if !same {
		o.readFile(path)
		o.moved.Wake()
	}
}

// readFile reads the file, and brings it into force.
func (o *Owner) readFile(path string) {
	o.compiling.Lock()
	defer o.compiling.Unlock()
	var w written
	if path != "" {
		var err error
		if w, err = parseFile(path); err != nil {
			o.Set(Given{From: path, Err: err})
			return
		}
	}
	o.written, o.from = &w, path
	o.compile()
}

// compile brings what was read into force, with the addresses that this node's pods have now. The caller holds compiling.
func (o *Owner) compile() {
	if o.written == nil { // another source
		return
	}
	local, err := o.Local()
	g := Given{From: cmp.Or(o.from, "cluster.yaml names no policies"), Err: err}
	if err == nil {
		g.Rules = o.written.rules(local)
	}
	o.Set(g)
}

// follow rereads the file whenever it has changed, until ctx ends.
func (o *Owner) follow(ctx context.Context) {
	for ctx.Err() == nil {
		o.mu.Lock()
		path := o.file
		o.mu.Unlock()
		sub, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if path != nil && *path != "" {
			wg.Go(func() { file.Follow(sub, *path, func() { o.readFile(*path) }) })
		}
		select {
		case <-ctx.Done():
		case <-o.moved:
		}
		cancel()
		wg.Wait()
	}
}
