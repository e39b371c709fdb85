package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

// TestPort is where the pods of a connectivity test answer.
const TestPort = 8080

const (
	// testNamespace is made for a test, and deleted with all that is in it.
	testNamespace = "edgemesh-connectivity"
	// mostNodes is how many nodes are tested unless they are named: the tries grow with their square.
	mostNodes = 8
	// secondIP stands for a dual-stack pod's other address.
	secondIP = "second-ip"
	// pollEvery is how often pods are looked at.
	pollEvery = time.Second
	// cleanTimeout bounds the deletion, which also comes after an interruption.
	cleanTimeout = 30 * time.Second
)

// Failure is a target that did not answer.
type Failure struct {
	To    string `json:"to"` // METHOD/NODE
	Error string `json:"error"`
}

// Tried is what one pod reports.
type Tried struct {
	Answered int       `json:"answered"`
	Failed   []Failure `json:"failed"`
	More     int       `json:"more,omitempty"` // failures that are left out
}

// test is one connectivity test.
type test struct {
	*cluster
	w     io.Writer
	image string
	nodes []string
	ips   map[string]string // of the pods that answer, by node
}

// tested is what the test came to; it is what --json prints.
type tested struct {
	Nodes    []string      `json:"nodes"`
	Answered int           `json:"answered"`
	Failed   []pairFailure `json:"failed"`
	Unlisted []unlisted    `json:"unlisted,omitempty"` // failures beside those of failed
	Missing  []Failure     `json:"missing,omitempty"`  // nodes without a result
}

type pairFailure struct {
	From string `json:"from"`
	Failure
}

// unlisted is how many failures of one node did not fit its pod's status.
type unlisted struct {
	From  string `json:"from"`
	Count int    `json:"count"`
}

func newConnectivityTest(k *cluster) *cobra.Command {
	var nodes []string
	var image string
	var asJSON bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "connectivity-test",
		Short: "Have pods on all nodes query each other by IP, Service and DNS name",
		Long: fmt.Sprintf(`Make a pod and a Service on each node, have a pod on each node query all of them by IP, Service
and DNS name, print who does not reach whom, and delete everything. It takes %d ready nodes
unless --nodes names others. The pods run in the namespace %s, with the agents'
image, without rights. Results come with the pods' status, so that nodes behind a NAT take part.
Exits with 1 if any pair fails.`, mostNodes, testNamespace),
		Example: `  kubectl edgemesh connectivity-test
  kubectl edgemesh connectivity-test --nodes edge-1,edge-2,cloud-1`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			t := &test{cluster: k, w: c.ErrOrStderr(), image: image, ips: map[string]string{}}
			if err := t.choose(c.Context(), nodes); err != nil {
				return err
			}
			out, err := t.run(c.Context(), patience)
			if err != nil {
				return err
			}
			return out.print(c.OutOrStdout(), asJSON)
		},
	}
	c.Flags().StringSliceVar(&nodes, "nodes", nil, "nodes to test")
	c.Flags().StringVar(&image, "image", "", "image of edgemesh-agent (default: that of the agents' DaemonSet)")
	c.Flags().DurationVar(&patience, "wait", 2*time.Minute, "how long pods may take to start, and again to end")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// choose finds the nodes and the image.
func (t *test) choose(ctx context.Context, named []string) error {
	all, _, err := t.members(ctx)
	if err != nil {
		return err
	}
	for _, name := range named {
		if _, err := find(all, name); err != nil {
			return err
		}
	}
	for _, m := range all {
		if slices.Contains(named, m.Node) || len(named) == 0 && m.Ready == "True" && len(t.nodes) < mostNodes {
			t.nodes = append(t.nodes, m.Node)
		}
		t.image = cmp.Or(t.image, m.Image)
	}
	switch {
	case len(named) > 0 && len(t.nodes) < 2:
		return errors.New("--nodes: name two nodes or more, or leave it out for those that are ready")
	case len(t.nodes) < 2:
		return errors.New("fewer than two nodes are ready: `kubectl edgemesh status` says why")
	case t.image == "":
		return errors.New("no agent runs as a DaemonSet's pod: name its image with --image")
	}
	return nil
}

// run makes the pods, waits for what they find, and cleans up.
func (t *test) run(ctx context.Context, patience time.Duration) (out tested, err error) {
	out = tested{Nodes: t.nodes, Failed: []pairFailure{}}
	if err := t.create(ctx, Namespace()); err != nil {
		return out, fmt.Errorf("%w; if it is left from an earlier test: kubectl delete namespace %s", err, testNamespace)
	}
	defer func() { err = errors.Join(err, t.remove(ctx)) }()
	for i, node := range t.nodes {
		if err := t.create(ctx, Server(i, node, t.image)); err != nil {
			return out, err
		}
	}
	fmt.Fprintf(t.w, "waiting for pods on %s\n", wording.Count(len(t.nodes), "node"))
	serving := func(p testPod) bool { return p.Status.Phase == "Running" && p.Status.PodIP != "" }
	pods, err := t.await(ctx, "serve", len(t.nodes), patience, serving)
	if err != nil {
		return out, err
	}
	services, err := t.services(ctx)
	if err != nil {
		return out, err
	}
	var targets []string
	for i, node := range t.nodes {
		p := pods[node]
		if !serving(p) {
			out.Missing = append(out.Missing, Failure{node, "its pod does not run: " + p.why()})
			continue
		}
		ip := func(a string) string { return fmt.Sprintf("http://%s/", net.JoinHostPort(a, fmt.Sprint(TestPort))) }
		targets = append(targets, "ip/"+node+"="+ip(p.Status.PodIP), "service/"+node+"="+ip(services[serviceName(i)]),
			"dns/"+node+"="+ip(serviceName(i)+"."+testNamespace+".svc"))
		for _, a := range p.Status.PodIPs {
			if a.IP != p.Status.PodIP && a.IP != "" { // the other IP version's
				targets = append(targets, secondIP+"/"+node+"="+ip(a.IP))
			}
		}
		t.ips[node] = p.Status.PodIP
	}
	fmt.Fprintf(t.w, "%s, %s each\n", wording.Count(len(t.ips), "pod queries", "pods query"), wording.Count(len(targets), "address"))
	for i, node := range t.nodes {
		if t.ips[node] == "" {
			continue
		}
		if err := t.create(ctx, Client(i, node, t.image, targets)); err != nil {
			return out, err
		}
	}
	clients, err := t.await(ctx, "try", len(t.ips), patience, func(p testPod) bool { return p.message() != "" || p.ended() })
	if err != nil {
		return out, err
	}
	t.sum(&out, clients)
	return out, nil
}

// sum reads what the pods found.
func (t *test) sum(out *tested, clients map[string]testPod) {
	for _, node := range t.nodes {
		if t.ips[node] == "" {
			continue
		}
		var got Tried
		p := clients[node]
		if err := json.Unmarshal([]byte(p.message()), &got); err != nil {
			out.Missing = append(out.Missing, Failure{node, "its pod gave no result: " + p.why()})
			continue
		}
		out.Answered += got.Answered
		for _, f := range got.Failed {
			out.Failed = append(out.Failed, pairFailure{node, f})
		}
		if got.More > 0 {
			out.Unlisted = append(out.Unlisted, unlisted{node, got.More})
		}
	}
}

// print shows who does not reach whom, and fails if anybody does not.
func (o tested) print(w io.Writer, asJSON bool) error {
	if asJSON {
		if err := cli.JSON(w, o); err != nil {
			return err
		}
	} else {
		for _, f := range o.Missing {
			fmt.Fprintf(w, "%s: %s\n", clean(f.To), clean(f.Error))
		}
		for _, f := range o.Failed {
			method, to, _ := strings.Cut(f.To, "/")
			fmt.Fprintf(w, "%s → %s by %s: %s\n", clean(f.From), clean(to), clean(method), clean(f.Error))
		}
		failed := len(o.Failed)
		for _, u := range o.Unlisted {
			failed += u.Count
			fmt.Fprintf(w, "%s: %d more requests failed\n", clean(u.From), u.Count)
		}
		fmt.Fprintf(w, "%s: %s answered, %d failed\n", wording.Count(len(o.Nodes), "node"), wording.Count(o.Answered, "request"), failed)
		o.advise(w)
	}
	if len(o.Failed)+len(o.Unlisted)+len(o.Missing) > 0 {
		return cli.ErrReported
	}
	return nil
}

// advise says what to look at: a failure says nothing new where a simpler method fails, too.
func (o tested) advise(w io.Writer) {
	first := map[string]pairFailure{}
	for _, f := range o.Failed {
		method, _, _ := strings.Cut(f.To, "/")
		if _, there := first[method]; !there {
			first[method] = f
		}
	}
	f, byIP := first["ip"]
	if !byIP {
		f, byIP = first[secondIP]
	}
	_, byService := first["service"]
	_, byDNS := first["dns"]
	switch {
	case byIP:
		_, to, _ := strings.Cut(f.To, "/")
		fmt.Fprintf(w, "  → the pod network: kubectl edgemesh doctor %s %s\n", clean(f.From), clean(to))
	case byService:
		fmt.Fprintln(w, "  → addresses work, Services do not: kube-proxy on those nodes, not the pod network")
	case byDNS:
		fmt.Fprintln(w, "  → addresses and Services work, names do not: CoreDNS, or how nodes reach it, not the pod network")
	}
}
