package read

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

	"edgemesh/agent/findings"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// maxFile bounds the file of policies, in bytes.
const maxFile = 4 << 20

// written is what the file says.
type written struct {
	from       string // its path
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
	out.from, out.namespaces = path, map[string]map[string]string{}
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
		var pod podgroups.Pod // leaves out addresses that are none
		var at struct {
			Status struct {
				PodIPs []struct {
					IP netip.Addr `json:"ip"`
				} `json:"podIPs"`
			} `json:"status"`
		}
		if err := errors.Join(yaml.Unmarshal(text, &pod), yaml.Unmarshal(text, &at)); err != nil {
			return fmt.Errorf("%s %s: %w", head.Kind, name, err)
		}
		w.pods = append(w.pods, pod.As)
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

// File compiles the policies of a membership file. Its methods may be called at any time.
type File struct {
	c     Config
	moved wake.One // another file is to be followed

	mu      sync.Mutex // locked before what Set locks
	path    *string    // "": there are no policies; nil: not known yet
	written *written   // as read last without an error
}

// NewFile returns a File that does nothing yet. Of c it uses Local, Set and SetOff.
func NewFile(c Config) *File { return &File{c: c, moved: wake.NewOne()} }

// First returns, of a node that has never known policies, what is to be closed until they are read: all, in case the file cannot be.
func (f *File) First(s mesh.State) (out policy.Rules) {
	if s.PolicyFile != "" {
		out.Namespaces = map[string][2]bool{policy.EveryNamespace: {true, true}}
	}
	return out
}

// SetState has the policies of the file in force that s names. The file has been read when it returns, and is reread until another is set.
func (f *File) SetState(s mesh.State) {
	f.c.SetOff(s.NetworkPolicy == mesh.PolicyOff)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == nil || *f.path != s.PolicyFile {
		f.path = &s.PolicyFile
		f.read()
		f.moved.Wake()
	}
}

// read reads the file, and brings it into force. The caller holds mu.
func (f *File) read() {
	w := written{from: *f.path}
	if w.from != "" {
		var err error
		if w, err = parseFile(w.from); err != nil {
			f.c.Set(enforce.Given{From: *f.path, Err: err})
			return
		}
	}
	f.written = &w
	f.compile()
}

// compile brings what was read into force, with the addresses that this node's pods have now. The caller holds mu.
func (f *File) compile() {
	local, err := f.c.Local()
	g := enforce.Given{From: cmp.Or(f.written.from, "cluster.yaml names no policies"), Err: err}
	if err == nil {
		g.Rules = f.written.rules(local)
	}
	f.c.Set(g)
}

// PodsChanged says that Local has changed.
func (f *File) PodsChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.written != nil {
		f.compile()
	}
}

// Run rereads the file whenever it has changed, until ctx ends.
func (f *File) Run(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()
		path := f.path
		f.mu.Unlock()
		sub, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if path != nil && *path != "" {
			wg.Go(func() { file.Follow(sub, *path, func() { f.changed(*path) }) })
		}
		select {
		case <-ctx.Done():
		case <-f.moved:
		}
		cancel()
		wg.Wait()
	}
}

func (f *File) changed(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *f.path == path {
		f.read()
	}
}

// Findings are none: what is wrong with the file is the Owner's to say.
func (*File) Findings() []findings.Finding { return nil }
