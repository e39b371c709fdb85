package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

// address is a relay's, as `edgemesh-relay install` prints it.
var address = regexp.MustCompile(`^/(?:ip4|ip6|dns|dns4|dns6)/[^/\s"']+/[a-z0-9/-]+/p2p/(12D3KooW[1-9A-HJ-NP-Za-km-z]{44})$`)

// podNetwork is what the commands use of it.
type podNetwork struct {
	Metadata struct {
		ResourceVersion     string
		Labels, Annotations map[string]string
	}
	Spec   struct{ Relays, Signed []string }
	Status struct{ Signer string }
}

func newRelay(k *cluster) *cobra.Command {
	c := &cobra.Command{
		Use:   "relay",
		Short: "Add relays to the PodNetwork, list them, remove them",
		Long: `Add relays to the PodNetwork, list them, remove them. A relay outside of the cluster pins the
key of the cluster's controllers, which is public, and needs neither secrets nor access to the API.`,
		Example: "  kubectl edgemesh relay add       # prints the server's line\n  kubectl edgemesh relay list",
		Args:    cli.Args(),
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var unproved, replace, force bool
	add := &cobra.Command{
		Use:   "add [ADDRESS...]",
		Short: "Print the line for a new relay's server; put a relay's addresses into the PodNetwork",
		Long: `Print the line that installs a relay on a server; nothing in it is secret. With the addresses
that it printed there, put these into the PodNetwork once an agent has finished a handshake
over TCP in which the relay showed the key that they name.`,
		Example: "  kubectl edgemesh relay add\n  kubectl edgemesh relay add /ip4/203.0.113.5/tcp/4470/p2p/12D3KooW…",
		RunE:    func(c *cobra.Command, args []string) error { return k.addRelay(c, args, unproved, replace) },
	}
	add.Flags().BoolVar(&unproved, "unproved", false, "add them although no agent has seen that key there")
	add.Flags().BoolVar(&replace, "replace", false, "remove the relay that had another key at the same address")
	list := &cobra.Command{
		Use: "list", Short: "Show the PodNetwork's relays: version, reservations, whether they know all that is signed",
		Example: "  kubectl edgemesh relay list", Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error { return k.listRelays(c.Context(), c.OutOrStdout()) },
	}
	remove := &cobra.Command{
		Use: "remove PEER-ID", Short: "Remove a relay from the PodNetwork",
		Long:    "Remove a relay from the PodNetwork. Members that hold a reservation nowhere else are named, and it stays, unless --force is given.",
		Example: "  kubectl edgemesh relay remove 12D3KooW…", Args: cli.Args("PEER-ID"),
		RunE: func(c *cobra.Command, args []string) error { return k.removeRelay(c, args[0], force) },
	}
	remove.Flags().BoolVar(&force, "force", false, "remove it although members would have none")
	c.AddCommand(add, list, remove)
	return c
}

func (k *cluster) podNetwork(ctx context.Context) (n podNetwork, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	if err = k.list(ctx, &n, "get", "podnetworks.network.edgemesh.io", "cluster"); err != nil {
		err = fmt.Errorf("read the PodNetwork: %w%s", err, advice(err))
	}
	return n, err
}

// setRelays replaces the PodNetwork's relays, or says how where helm has it.
func (k *cluster) setRelays(c *cobra.Command, n podNetwork, relays []string) error {
	text, err := json.Marshal(relays)
	if err != nil {
		return err
	}
	if n.Metadata.Labels["app.kubernetes.io/managed-by"] == "Helm" {
		at := n.Metadata.Annotations
		release, namespace := cmp.Or(at["meta.helm.sh/release-name"], "RELEASE"), cmp.Or(at["meta.helm.sh/release-namespace"], k.namespace)
		_, err = fmt.Fprintf(c.OutOrStdout(), "helm made the PodNetwork, and nothing was changed; the value is podNetwork.relays:\n  helm upgrade %s CHART -n %s --reset-then-reuse-values --set-json 'podNetwork.relays=%s'\n",
			clean(release), clean(namespace), clean(string(text)))
		return err
	}
	out, err := k.output(c.Context(), "patch", "podnetworks.network.edgemesh.io", "cluster", "--type=merge", "-p", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"relays":%s}}`, n.Metadata.ResourceVersion, text))
	if err == nil {
		_, err = fmt.Fprintln(c.OutOrStdout(), clean(string(out)))
	}
	return err
}

func (k *cluster) addRelay(c *cobra.Command, addrs []string, unproved, replace bool) error {
	n, err := k.podNetwork(c.Context())
	switch {
	case err != nil:
		return err
	case len(addrs) == 0 && n.Status.Signer == "":
		return errors.New("the PodNetwork's status names no signer: no controller of this release signs; see controller.sign in the chart, apply its crds directory, and look at `kubectl edgemesh status`")
	case len(addrs) == 0:
		_, err = fmt.Fprintf(c.OutOrStdout(), "on the server, as root:\n  edgemesh-relay install --signer %s\nthen here, with the addresses that it prints:\n  kubectl edgemesh relay add ADDRESS...\n", clean(n.Status.Signer))
		if err == nil && len(n.Spec.Signed) > 0 {
			_, err = fmt.Fprintln(c.OutOrStdout(), "where your own key has delegated to this one, list both under signers in the server's /etc/edgemesh/relay.yaml")
		}
		return err
	}
	relays := slices.Clone(n.Spec.Relays)
	args := []string{"netcheck", "--port-mapping=false", "--prove"}
	for _, a := range addrs {
		if !address.MatchString(a) {
			return cli.Usage(fmt.Errorf("%q is not a relay's address, like /ip4/203.0.113.5/tcp/4470/p2p/12D3KooW…", a))
		}
		args = append(args, "--relay", a)
		at, id, _ := strings.Cut(a, "/p2p/")
		for _, former := range n.Spec.Relays {
			old, same := strings.CutPrefix(former, at+"/p2p/")
			switch {
			case !same || old == id:
			case !replace:
				return fmt.Errorf("the PodNetwork has the relay %s at that address; nothing was changed: give --replace if its server has another key now", clean(old))
			default:
				relays = slices.DeleteFunc(relays, func(r string) bool { return strings.HasSuffix(r, "/p2p/"+old) })
			}
		}
	}
	if !unproved {
		if err := k.prove(c.Context(), args); err != nil {
			return fmt.Errorf("%w; nothing was changed: check the server's firewall and its provider's, or give --unproved", err)
		}
	}
	for _, a := range addrs {
		if !slices.Contains(relays, a) {
			relays = append(relays, a)
		}
	}
	return k.setRelays(c, n, relays)
}

// prove is nil if to one of three agents each relay shows its key that the arguments of netcheck name.
func (k *cluster) prove(ctx context.Context, args []string) error {
	all, _, err := k.members(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m member) bool { return m.unreachable() != nil || m.Ready != "True" })
	err = errors.New("no agent's pod can be reached")
	for _, m := range all[:min(len(all), 3)] {
		soon, cancel := context.WithTimeout(ctx, k.timeout)
		_, err = k.output(soon, k.inPod(m.Pod, args...)...)
		if cancel(); err == nil {
			return nil
		}
		err = fmt.Errorf("%s sees no relay with that key by TCP (%w)%s", clean(m.Node), err, otherRelease(m))
	}
	return err
}

// relay is one as agents see it.
type relay struct {
	version  string
	reserved []string // members that hold a reservation
	knows    []string // that find it has all that they have of what is signed
	behind   []string // that find it may lack some
	lacks    int      // of what is signed, the most that a member finds it does not take
	lacking  []string // some of them
}

// relays are those that agents use, by peer ID, of how many members, and who could not be asked.
func (k *cluster) relays(ctx context.Context) (at map[string]relay, members int, silent []string, err error) {
	all, _, err := k.members(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	states := make([]control.Status, len(all))
	errs := make([]error, len(all))
	each(all, func(i int, m member) { errs[i] = k.query(ctx, m, &states[i], "status") })
	at = map[string]relay{}
	for i, m := range all {
		node := clean(m.Node)
		if errs[i] != nil {
			silent = append(silent, node)
		}
		for _, r := range states[i].Relays {
			x := at[r.PeerID]
			x.version = cmp.Or(x.version, clean(r.Version))
			for _, says := range []struct {
				is bool
				to *[]string
			}{{r.Reserved, &x.reserved}, {r.Knows, &x.knows}, {r.Behind != nil, &x.behind}} {
				if says.is {
					*says.to = append(*says.to, node)
				}
			}
			if r.Lacks > x.lacks {
				x.lacks, x.lacking = r.Lacks, r.Lacking
			}
			at[r.PeerID] = x
		}
	}
	return at, len(all), silent, nil
}

// say is what agents say, of so many members.
func (r relay) say(members int) string {
	knows := "no agent exchanges statements with it"
	switch {
	case r.lacks > 0:
		knows = fmt.Sprintf("lacks %d of what is signed: %s", r.lacks, clean(strings.Join(r.lacking, ", ")))
		if r.lacks > len(r.lacking) {
			knows += ", …"
		}
	case len(r.behind) > 0:
		knows = "may lack members or bans that these know: " + wording.Most(r.behind, 3)
	case len(r.knows) > 0:
		knows = "knows all " + wording.Count(members, "member")
	}
	return fmt.Sprintf("%s\t%s reserved\t%s", cmp.Or(r.version, "-"), wording.Count(len(r.reserved), "member"), knows)
}

func (k *cluster) listRelays(ctx context.Context, to io.Writer) error {
	n, err := k.podNetwork(ctx)
	if err != nil {
		return err
	}
	at, members, silent, err := k.relays(ctx)
	if err != nil {
		return err
	}
	addrs := map[string][]string{}
	for _, a := range n.Spec.Relays {
		addr, id, _ := strings.Cut(clean(a), "/p2p/")
		addrs[id] = append(addrs[id], addr)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, id := range slices.Sorted(maps.Keys(addrs)) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", id, at[id].say(members), strings.Join(addrs[id], " "))
	}
	if len(silent) > 0 {
		fmt.Fprintf(w, "not asked, because their agents do not answer: %s\n", wording.List(silent))
	}
	return w.Flush()
}

func (k *cluster) removeRelay(c *cobra.Command, id string, force bool) error {
	n, err := k.podNetwork(c.Context())
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(n.Spec.Relays), func(a string) bool { return strings.HasSuffix(a, "/p2p/"+id) })
	if len(left) == len(n.Spec.Relays) {
		return cli.Usage(fmt.Errorf("%s: the PodNetwork has no such relay; `kubectl edgemesh relay list` shows them", id))
	}
	if !force {
		at, _, silent, err := k.relays(c.Context())
		if err != nil {
			return err
		}
		alone := slices.DeleteFunc(at[id].reserved, func(node string) bool {
			for other, x := range at {
				if other != id && slices.Contains(x.reserved, node) {
					return true
				}
			}
			return false
		})
		if len(alone)+len(silent) > 0 {
			return fmt.Errorf("nothing was changed: these hold a reservation there alone: %s; these do not answer: %s; add another relay before, or give --force",
				cmp.Or(wording.List(alone), "none"), cmp.Or(wording.List(silent), "none"))
		}
	}
	return k.setRelays(c, n, left)
}
