package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/findings"
	"edgemesh/internal/cli"
	"edgemesh/internal/version"
	"edgemesh/internal/wording"
)

const (
	// sameTime is how many agents are queried at the same time: each is a process of kubectl.
	sameTime = 16
	// ofUnseen bounds what one call takes of a node that nobody sees: 200 of them take 40 s.
	ofUnseen = 3 * time.Second
	// maxAnswer bounds what one call may print, in bytes: the status of 10,000 members fits.
	maxAnswer = 64 << 20
)

// cluster is what kubectl is called for.
type cluster struct {
	kubeconfig, context, namespace string
	timeout                        time.Duration // of one agent
}

// member is a node of the pod network, as the API has it.
type member struct {
	Node    string `json:"node"`
	Ready   string `json:"ready,omitempty"` // True, False or Unknown
	Because string `json:"because,omitempty"`
	Version string `json:"version,omitempty"`
	Pod     string `json:"pod,omitempty"` // of its agent; "": it has none
	Image   string `json:"-"`             // of that pod's DaemonSet
	Static  bool   `json:"-"`             // there is a mirror pod of an agent, or of something that says so
}

// command is a call of kubectl.
func (k *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	var all []string
	for flag, value := range map[string]string{"--kubeconfig": k.kubeconfig, "--context": k.context} {
		if value != "" {
			all = append(all, flag+"="+value)
		}
	}
	slices.Sort(all)
	c := exec.CommandContext(ctx, cmp.Or(os.Getenv("KUBECTL"), "kubectl"), append(all, args...)...)
	c.WaitDelay = time.Second
	return c
}

var errTooLong = errors.New("the answer is too long")

// output runs kubectl and returns what it prints, also with an error, which is what it complains of.
func (k *cluster) output(ctx context.Context, args ...string) ([]byte, error) {
	c := k.command(ctx, args...)
	var out, complaint bytes.Buffer
	stdout, stderr := &bounded{to: &out, left: maxAnswer, most: errTooLong}, &bounded{to: &complaint, left: maxAnswer, most: errTooLong}
	c.Stdout, c.Stderr = stdout, stderr
	err := c.Run()
	switch {
	case stdout.err != nil || stderr.err != nil:
		return nil, errTooLong // whatever else is said of a program that was cut off
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%w: install kubectl, or name it with $KUBECTL", err)
	case ctx.Err() != nil:
		return out.Bytes(), fmt.Errorf("no answer: %w", ctx.Err())
	}
	if text := said(complaint.String()); text != "" {
		err = errors.New(text)
	}
	return out.Bytes(), err
}

// running is what the API has of agents and controllers: DaemonSets, Deployments and pods.
type running struct {
	Items []struct {
		Kind     string
		Metadata struct {
			Name, UID, DeletionTimestamp string
			Labels, Annotations          map[string]string
			OwnerReferences              []struct {
				UID        string
				Controller bool
			}
		}
		Spec struct {
			Replicas *int
			NodeName string
			Template struct {
				Spec struct {
					Containers []struct{ Image string }
					Affinity   struct {
						NodeAffinity struct {
							Required struct {
								Terms []struct {
									Expressions []struct{ Key string } `json:"matchExpressions"`
								} `json:"nodeSelectorTerms"`
							} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
						}
					}
				}
			}
		}
		Status struct {
			Phase                              string
			AvailableReplicas, UpdatedReplicas int
			Conditions                         []struct{ Type, Status, Message string }
		}
	}
}

// members lists the nodes of the pod network and their agents' pods, by name, and what is wrong with the cluster as a whole.
// Any kubelet can make a mirror pod with the agents' labels and an image of its choice, so only pods that a DaemonSet owns are
// agents', and the image is that of its template.
func (k *cluster) members(ctx context.Context) ([]member, []findings.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				AgentVersion string
				Conditions   []struct{ Type, Status, Message string }
			}
		}
	}
	if err := k.list(ctx, &nodes, "get", "meshnodes.network.edgemesh.io"); err != nil {
		return nil, nil, fmt.Errorf("list MeshNodes: %w%s", err, advice(err))
	}
	var all running
	if err := k.list(ctx, &all, "get", "daemonsets.apps,pods", "-n", k.namespace, "-l",
		"app.kubernetes.io/name=edgemesh,app.kubernetes.io/component in (agent,edge-agent,static-agent,controller)"); err != nil {
		return nil, nil, fmt.Errorf("list the agents' DaemonSets and pods: %w%s", err, advice(err))
	}
	var controllers running
	// Whoever may not list Deployments gets everything else.
	if err := k.list(ctx, &controllers, "get", "deployments.apps", "-n", k.namespace, "-l",
		"app.kubernetes.io/name=edgemesh,app.kubernetes.io/component=controller"); err == nil {
		all.Items = append(all.Items, controllers.Items...)
	}
	images := map[string]string{} // of the DaemonSets, by UID
	for _, d := range all.Items {
		if d.Kind == "DaemonSet" && len(d.Spec.Template.Spec.Containers) > 0 {
			images[d.Metadata.UID] = d.Spec.Template.Spec.Containers[0].Image
		}
	}
	pods := map[string]member{}
	for _, p := range all.Items {
		m := pods[p.Spec.NodeName]
		if p.Kind != "Pod" || p.Status.Phase != "Running" || m.Pod != "" && p.Metadata.DeletionTimestamp != "" {
			continue
		}
		if _, mirror := p.Metadata.Annotations["kubernetes.io/config.mirror"]; mirror {
			m.Static = true
		} else {
			for _, o := range p.Metadata.OwnerReferences {
				if image, ours := images[o.UID]; ours && o.Controller {
					m.Pod, m.Image = p.Metadata.Name, image
				}
			}
		}
		pods[p.Spec.NodeName] = m
	}
	var out []member
	for _, n := range nodes.Items {
		m := pods[n.Metadata.Name]
		m.Node, m.Version = clean(n.Metadata.Name), wording.Foreign(n.Status.AgentVersion, 128)
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" {
				m.Ready, m.Because = wording.Foreign(c.Status, 128), wording.Foreign(c.Message, 1<<10)
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.Node, b.Node) })
	return out, all.leaderless(k.namespace), nil
}

// leaderless is the finding that no controller runs, though there should be one, or that one cannot: then one of an older release
// may run on where this one may not.
func (r running) leaderless(namespace string) []findings.Finding {
	why, label := "", ""
	for _, p := range r.Items {
		for _, c := range p.Status.Conditions {
			if p.Kind == "Pod" && p.Metadata.Labels["app.kubernetes.io/component"] == "controller" && c.Type == "PodScheduled" && c.Status == "False" {
				why = ": " + c.Message
			}
		}
	}
	for _, d := range r.Items {
		want := 1
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		text := "no controller runs"
		if d.Status.AvailableReplicas > 0 {
			text = "a controller's pod cannot run"
			if why == "" && d.Status.UpdatedReplicas < want {
				text = "a controller's pod is not of the Deployment's version yet"
			} else if why == "" {
				continue
			}
		}
		if d.Kind != "Deployment" || want == 0 {
			continue
		}
		for _, t := range d.Spec.Template.Spec.Affinity.NodeAffinity.Required.Terms {
			for _, e := range t.Expressions {
				if strings.HasPrefix(e.Key, "node-restriction.kubernetes.io/") {
					label = e.Key
				}
			}
		}
		remedy := fmt.Sprintf("kubectl -n %s describe deployment %s", namespace, d.Metadata.Name)
		if label != "" {
			remedy = fmt.Sprintf("it runs on the control plane, or on nodes that you trust with the cluster and label: kubectl label node NODE %s= (the chart's controller.label); `%s` says more", label, remedy)
		}
		return []findings.Finding{findings.Warningf("controller", remedy, "%s%s", text, why).Bounded()}
	}
	return nil
}

// advice is what to do about an answer of the API server.
func advice(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "(Forbidden)"):
		return "; it takes the rights to list MeshNodes, DaemonSets and pods, and to exec into the agents' pods"
	case strings.Contains(text, "doesn't have a resource type"):
		return "; the pod network is not installed in this cluster: --context names another one"
	}
	return ""
}

// list runs kubectl and reads the JSON that it prints.
func (k *cluster) list(ctx context.Context, into any, args ...string) error {
	out, err := k.output(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("read kubectl's answer: %w", err)
	}
	return nil
}

// The reasons why an agent cannot be reached.
var (
	errNoPod  = errors.New("no agent's pod runs there in the agents' namespace (--namespace); where the agent is a unit, run edgemesh-agent on the node")
	errStatic = errors.New("its agent's pod is a static one, which any kubelet can claim to be an agent's: run edgemesh-agent on the node, or crictl exec")
)

// unreachable says why m's agent cannot be reached, nil if it can.
func (m member) unreachable() error {
	switch {
	case m.Pod != "":
		return nil
	case m.Static:
		return errStatic
	}
	return errNoPod
}

// inPod are the arguments that run a command of the agent in its pod.
func (k *cluster) inPod(pod string, args ...string) []string {
	return append([]string{"exec", "-n", k.namespace, pod, "-c", "agent", "--", "edgemesh-agent"}, args...)
}

// query makes an agent run a command that prints JSON. An exit code other than 0 is no error if there is an answer: doctor's
// says that something is broken.
func (k *cluster) query(ctx context.Context, m member, into any, args ...string) error {
	if err := m.unreachable(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.patience(m))
	defer cancel()
	out, err := k.output(ctx, k.inPod(m.Pod, append(args, "--json")...)...)
	bad := json.Unmarshal(out, into)
	switch {
	case bad == nil:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("its answer cannot be read: %w%s", bad, otherRelease(m))
}

// patience is how long a node is waited for.
func (k *cluster) patience(m member) time.Duration {
	if m.Ready == "Unknown" {
		return min(k.timeout, ofUnseen)
	}
	return k.timeout
}

// otherRelease says so of an agent, or is "": it may not know a command, or answer in another form.
func otherRelease(m member) string {
	if m.Version == "" || m.Version == version.Number() {
		return ""
	}
	return fmt.Sprintf("; its agent is %s, and kubectl edgemesh %s", clean(m.Version), version.Number())
}

// each calls f for all members, some at the same time.
func each(all []member, f func(i int, m member)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, sameTime)
	for i, m := range all {
		slots <- struct{}{}
		wg.Go(func() {
			f(i, m)
			<-slots
		})
	}
	wg.Wait()
}

// find is the member of that name.
func find(all []member, node string) (member, error) {
	var names []string
	for _, m := range all {
		if m.Node == node {
			return m, nil
		}
		names = append(names, m.Node)
	}
	return member{}, fmt.Errorf("%s: no such MeshNode%s; `kubectl get meshnodes` lists them", node, wording.Offer(node, names))
}

// reached is the member of that name, whose agent can be reached.
func (k *cluster) reached(ctx context.Context, node string) (member, error) {
	all, _, err := k.members(ctx)
	if err != nil {
		return member{}, err
	}
	m, err := find(all, node)
	if err != nil {
		return m, err
	}
	if err := m.unreachable(); err != nil {
		return m, fmt.Errorf("%s: %w", node, err)
	}
	return m, nil
}

// pass runs a command of one node's agent, whose exit code becomes this program's, and whose output does, as far as a terminal
// can show it: the node may be hostile.
func (k *cluster) pass(c *cobra.Command, node string, args ...string) (err error) {
	m, err := k.reached(c.Context(), node)
	if err != nil {
		return err
	}
	args, file, streams := streamed(args)
	run := k.command(c.Context(), k.inPod(m.Pod, args...)...)
	run.Stdin, run.Stdout, run.Stderr = c.InOrStdin(), &wording.Writer{To: c.OutOrStdout()}, &wording.Writer{To: c.ErrOrStderr()}
	if streams {
		run.Stdout = c.OutOrStdout() // packets, an archive
	}
	if file != "" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		saved := &bounded{to: f, left: mostSaved, most: errMostSaved}
		run.Stdout = saved
		defer func() {
			if e := errors.Join(saved.err, ended(f)); err == nil || saved.err != nil {
				err = e
			}
		}()
	}
	err = run.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if other := otherRelease(m); other != "" && exit.ExitCode() == cli.ExitUsage {
			fmt.Fprintf(c.ErrOrStderr(), "kubectl edgemesh: %s may not know this%s\n", clean(node), other)
		}
		return cli.Exit(max(1, exit.ExitCode()))
	}
	return err
}

// mostSaved bounds what a command saves of a node, which may be hostile: a bundle has some MB, a capture as much as it was asked for.
const mostSaved = 4 << 30

// errMostSaved is what a node that sends without end is ended with.
var errMostSaved = fmt.Errorf("the node sends more than %d GiB, which no command does: what was saved so far stays", mostSaved>>30)

// bounded writes so many bytes and no more.
type bounded struct {
	to   io.Writer
	left int64
	most error // what is said of more
	err  error // most, once there was more
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.err != nil || int64(len(p)) > b.left {
		b.err = b.most
		return 0, b.err
	}
	b.left -= int64(len(p))
	return b.to.Write(p)
}

// ended closes a file, and removes one to which nothing was written: it would block the next try.
func ended(f *os.File) error {
	st, err := f.Stat()
	err = errors.Join(err, f.Close())
	if err == nil && st.Size() == 0 {
		err = os.Remove(f.Name())
	}
	return err
}

// streamed makes the agent write to standard output what goes to a file, which is one of this machine and not of the agent's
// pod; file is "" where it is standard output here, too.
func streamed(args []string) (out []string, file string, streams bool) {
	out = slices.Clone(args)
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		switch {
		case name != "--write" && name != "--bundle":
			continue
		case joined:
			out[i] = name + "=-"
		case i+1 < len(args):
			value, out[i+1] = args[i+1], "-"
		}
		if streams = true; value != "-" {
			file = value
		}
	}
	return out, file, streams
}

// logged is a line of kubectl's log, of which it writes the same several times before its last line says it for people.
var logged = regexp.MustCompile(`(?m)^[EWI][0-9]{4} [0-9:.]+ .*\n`)

// said is what kubectl complains of, on one line.
func said(complaint string) string {
	return clean(strings.TrimSpace(cmp.Or(strings.TrimSpace(logged.ReplaceAllString(complaint, "")), complaint)))
}

// clean makes text of other machines safe to print, on one line.
func clean(text string) string { return wording.Foreign(text, 2<<10) }
