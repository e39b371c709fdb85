package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/durable"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/source"
)

func newMembership() *cobra.Command {
	c := &cobra.Command{
		Use:   "membership",
		Short: "Sign who is a member, ban, delegate: for nodes with signers in their configuration",
		Long: `Sign the membership with a key that stays offline. Nodes and relays whose configuration
lists that key under signers believe nothing else: neither the API nor its cache,
cluster.yaml, the snapshot, relays or other members, which merely carry the statements.

Statements are lines of text. With --membership FILE they are kept in FILE.signed,
which belongs beside cluster.yaml on the nodes; without it they are printed, for the
PodNetwork's spec.signed for instance. Members pass on newer ones to each other.`,
		Example: `  edgemesh-agent membership key signer.key
  edgemesh-agent membership sign --key signer.key --membership cluster.yaml
  edgemesh-agent membership ban edge-7 --key signer.key --membership cluster.yaml`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newMembershipKey(), newMembershipSign(), newMembershipBan(), newMembershipDelegate(), newMembershipShow())
	return c
}

// signing is what the commands that sign have in common.
type signing struct {
	keyFile, cluster, membership string
	force                        bool
	key                          crypto.PrivKey
	old                          []signed.Signed // in the file beside membership
}

func (s *signing) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.keyFile, "key", "", "the file with the signing key, made by: edgemesh-agent membership key FILE")
	c.Flags().StringVar(&s.cluster, "cluster", "", "sign with the key that --key has for this cluster")
	c.Flags().StringVar(&s.membership, "membership", "", "cluster.yaml; what is signed is kept beside it, in FILE"+source.SignedSuffix)
	c.Flags().BoolVar(&s.force, "force", false, "sign although that lets other statements expire, bans a name that nothing has, or is another key than before")
}

// load reads the key and the statements that there are.
func (s *signing) load(c *cobra.Command) (err error) {
	if s.keyFile == "" {
		return cli.Usage(errors.New("--key FILE is missing; make a key by: edgemesh-agent membership key FILE"))
	}
	if s.key, err = signed.LoadKey(s.keyFile); err != nil {
		return cli.Usage(fmt.Errorf("--key: %w", err))
	}
	if s.key, err = forCluster(c, s.key, s.cluster); err != nil {
		return err
	}
	if now := time.Now(); now.Year() < 2026 {
		return cli.Usage(fmt.Errorf("this machine's clock says %s, and a statement that was signed then would replace none: set the clock", now.Format(time.DateOnly)))
	}
	if s.membership == "" {
		return nil
	}
	path := s.membership + source.SignedSuffix
	if s.old, err = readStatements(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(s.old) == 0 || s.force {
		return err
	}
	self, err := peer.IDFromPrivateKey(s.key)
	knows := func(x signed.Signed) bool { return x.Signer == self || x.Kind == signed.Delegation && x.ID == self }
	if err == nil && !slices.ContainsFunc(s.old, knows) {
		return cli.Usage(fmt.Errorf("%s is signed by %s, and --key with --cluster %q is %s, which nodes need not know: give the same ones as before, "+
			"or --force to change the key", path, s.old[0].Signer, s.cluster, self))
	}
	return err
}

// forCluster is the key for a cluster. An empty name, which a shell's unset variable leaves, is refused.
func forCluster(c *cobra.Command, key crypto.PrivKey, cluster string) (crypto.PrivKey, error) {
	if cluster == "" && c.Flags().Changed("cluster") {
		return nil, cli.Usage(errors.New("--cluster is empty: name the cluster, or leave the flag out"))
	}
	key, err := signed.ForCluster(key, cluster)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--cluster: %w", err))
	}
	return key, nil
}

// readStatements reads a file of statements, and names the first line that is none.
func readStatements(path string) (out []signed.Signed, err error) {
	texts, err := signed.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i, line := range texts {
		text, _, _ := strings.Cut(line, " ") // a node's own file has a tag behind it
		x, err := signed.Read(text)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("%s: statement %d: %w; remove it, or take the file from where it was signed", path, i+1, err))
		}
		out = append(out, x)
	}
	return out, nil
}

// epoch is later than all that was signed.
func (s *signing) epoch() uint64 { return signed.Now(latest(s.old)) }

// latest is when the last of all was signed, 0 for none.
func latest(all []signed.Signed) (epoch uint64) {
	for _, x := range all {
		epoch = max(epoch, x.Epoch)
	}
	return epoch
}

// banned reports whether a ban that holds names a node or its key, also by the name of a node that had this key.
func (s *signing) banned(name string, id peer.ID) bool {
	had := func(name string) bool {
		return slices.ContainsFunc(s.old, func(x signed.Signed) bool { return x.Kind == signed.Member && x.Name == name && x.ID == id })
	}
	return slices.ContainsFunc(s.old, func(ban signed.Signed) bool {
		return ban.Kind == signed.Ban && !s.lifted(ban) && (ban.ID == id && id != "" || ban.Name != "" && (ban.Name == name || had(ban.Name)))
	})
}

// lifted reports whether something newer that is signed lifts a ban.
func (s *signing) lifted(ban signed.Signed) bool {
	return slices.ContainsFunc(s.old, func(x signed.Signed) bool {
		return x.Epoch > ban.Epoch && (x.Kind == signed.Member && x.Name == ban.Name && ban.Name != "" || x.Kind != signed.Ban && x.ID == ban.ID)
	})
}

// expiring are whom news end, which prove that their last day is over.
func (s *signing) expiring(news []signed.Signed) (who []string) {
	before, now := latest(s.old), latest(news)
	for _, old := range s.old {
		replaced := slices.ContainsFunc(news, func(x signed.Signed) bool {
			return x.Replaces(old) || x.Kind == signed.Ban && x.Who() == old.Who()
		})
		if before < old.Expires && old.Expires <= now && !replaced && !s.banned(old.Name, old.ID) {
			who = append(who, old.Who())
		}
	}
	return who
}

// put signs all, and keeps or prints what it signed.
func (s *signing) put(out io.Writer, all ...signed.Statement) error {
	var news []signed.Signed
	for _, x := range all {
		done, err := signed.Sign(x, s.key)
		if err != nil {
			return cli.Usage(fmt.Errorf("%s: %w", x.Who(), err))
		}
		news = append(news, done)
	}
	if who := s.expiring(news); len(who) > 0 && !s.force {
		return cli.Usage(fmt.Errorf("this would end %d statements on all nodes, whose day (--expires, --until) is over: %s; renew them first by "+
			"`edgemesh-agent membership sign --renew --expires DAY`, or give --force", len(who), list(who)))
	}
	if s.membership == "" {
		_, err := out.Write(signed.Lines(news))
		return err
	}
	path := s.membership + source.SignedSuffix
	if len(news) > 0 {
		kept := slices.DeleteFunc(s.old, func(old signed.Signed) bool {
			return slices.ContainsFunc(news, func(x signed.Signed) bool { return x.Replaces(old) })
		})
		if err := durable.WriteFile(path, signed.Lines(append(kept, news...)), 0o644); err != nil {
			return err
		}
	}
	for _, x := range news {
		fmt.Fprintf(out, "signed  %s\n", x.Describe())
	}
	_, err := fmt.Fprintf(out, "%d signed; copy %s beside cluster.yaml on a node or on all\n", len(news), path)
	return err
}

func newMembershipKey() *cobra.Command {
	var cluster string
	c := &cobra.Command{
		Use:   "key FILE",
		Short: "Print the public form of a signing key, which signers takes; create it if there is none",
		Long: `Print the public form of the signing key in FILE, and nothing else: what signers in
agent.yaml and relay.yaml takes. A key is created if there is no FILE (mode 0600). Keep it
offline, with a copy: who has it decides who is a member. For several clusters, --cluster has a key
of its own for each, derived from FILE: what is signed for one does not count in another.`,
		Example: `  edgemesh-agent membership key /media/usb/signer.key
  edgemesh-agent membership key /media/usb/signer.key --cluster shops`,
		Args: cli.Args("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			key, err := signed.NewKey(args[0])
			switch {
			case errors.Is(err, fs.ErrExist):
				if key, err = signed.LoadKey(args[0]); err != nil {
					return cli.Usage(err)
				}
			case err != nil:
				return cli.Usage(err)
			default:
				fmt.Fprintf(c.ErrOrStderr(), "created the signing key %s; keep it offline, with a copy\n", args[0])
			}
			if key, err = forCluster(c, key, cluster); err != nil {
				return err
			}
			id, err := peer.IDFromPrivateKey(key)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), id)
			return err
		},
	}
	c.Flags().StringVar(&cluster, "cluster", "", "the key for this cluster")
	return c
}

func newMembershipSign() *cobra.Command {
	var s signing
	var expires, name, id string
	var cidrs []string
	var renew bool
	c := &cobra.Command{
		Use:   "sign",
		Short: "Sign who is a member",
		Long: `Sign the nodes of cluster.yaml whose statement is missing, has expired or says something
else, or one node with --name, --peer-id and --pod-cidr, which lifts its ban: banned nodes are
left out otherwise. With --renew all are signed, bans and delegations, too, as a new key
needs it, with --force; the delegations end with --expires where that is later. A statement with --expires ends once a node has one that was signed later than
that: no clock counts, and no offline site is cut off.`,
		Example: `  edgemesh-agent membership sign --key signer.key --membership cluster.yaml
  edgemesh-agent membership sign --key signer.key --name edge-1 --peer-id 12D3KooW… \
    --pod-cidr 10.244.1.0/24`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			end, err := until("--expires", expires)
			if err != nil {
				return err
			}
			if end != 0 && end <= s.epoch() {
				return cli.Usage(fmt.Errorf("--expires %q is over: the statements would not count; give a later day", expires))
			}
			if name != "" || id != "" || len(cidrs) > 0 {
				x := signed.Statement{Kind: signed.Member, Name: name, Epoch: s.epoch(), Expires: end}
				if x.ID, err = peer.Decode(id); err != nil {
					return cli.Usage(fmt.Errorf("--peer-id %q is not a peer ID (12D3KooW…)", id))
				}
				if x.Blocks, err = cidrList("--pod-cidr", cidrs); err != nil {
					return err
				}
				return s.put(c.OutOrStdout(), x)
			}
			if s.membership == "" {
				return cli.Usage(errors.New("whom? give --membership cluster.yaml, or --name, --peer-id and --pod-cidr"))
			}
			state, err := file.Load(s.membership)
			if err != nil {
				return cli.Usage(err)
			}
			all, banned := s.unsigned(state.Nodes, end, renew)
			if len(banned) > 0 {
				fmt.Fprintf(c.ErrOrStderr(), "left out, because a signed statement bans them: %s; to lift that, sign one with --name, --peer-id and --pod-cidr\n", list(banned))
			}
			if renew {
				again, ended := s.again(end)
				if all = append(all, again...); len(ended) > 0 {
					fmt.Fprintf(c.ErrOrStderr(), "delegations left out, because they have ended: %s; renew them by: edgemesh-agent membership delegate\n", list(ended))
				}
				if err := s.dropOthers(); err != nil {
					return err
				}
			}
			return s.put(c.OutOrStdout(), all...)
		},
	}
	s.flags(c)
	c.Flags().StringVar(&expires, "expires", "", "the day on which they end, like 2027-12-31 (default never)")
	c.Flags().BoolVar(&renew, "renew", false, "sign all nodes, bans and delegations, also where a statement says the same")
	c.Flags().StringVar(&name, "name", "", "a node's name")
	c.Flags().StringVar(&id, "peer-id", "", "that node's peer ID, as edgemesh-agent id prints it")
	c.Flags().StringSliceVar(&cidrs, "pod-cidr", nil, "that node's blocks")
	return c
}

// unsigned are statements about the nodes that have none which counts and says the same, and which nodes are banned.
func (s *signing) unsigned(nodes []mesh.Node, end uint64, renew bool) (out []signed.Statement, banned []string) {
	have := map[string]signed.Signed{}
	for _, x := range s.old {
		if x.Kind == signed.Member {
			have[x.Name] = x
		}
	}
	epoch := s.epoch()
	for _, n := range nodes {
		x := have[n.Name]
		switch id, err := peer.Decode(string(n.PeerID)); {
		case err != nil:
		case s.banned(n.Name, id):
			banned = append(banned, n.Name)
		case renew || x.ID != id || !slices.Equal(x.Blocks, n.PodCIDRs) || x.Expires != 0 && x.Expires <= epoch:
			out = append(out, signed.Statement{Kind: signed.Member, Name: n.Name, ID: id, Blocks: n.PodCIDRs, Epoch: epoch, Expires: end})
		}
	}
	return out, banned
}

// again are the bans that hold and the delegations, until end if that is later, to be signed; and which delegations have ended.
func (s *signing) again(end uint64) (out []signed.Statement, ended []string) {
	epoch := s.epoch()
	for _, x := range s.old {
		next := x.Statement
		next.Epoch = epoch
		switch {
		case x.Kind == signed.Ban && !s.lifted(x):
			out = append(out, next)
		case x.Kind == signed.Delegation && !s.banned("", x.ID):
			if next.Expires = max(next.Expires, end); next.Expires > epoch {
				out = append(out, next)
			} else {
				ended = append(ended, x.Who())
			}
		}
	}
	return out, ended
}

// dropOthers drops what another key has signed: where all is signed again, what is left of it is about nobody.
func (s *signing) dropOthers() error {
	self, err := peer.IDFromPrivateKey(s.key)
	s.old = slices.DeleteFunc(s.old, func(x signed.Signed) bool { return x.Signer != self })
	return err
}

// list names some, and how many more there are.
func list(names []string) string {
	if more := len(names) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// mostNames is how many names one message has.
const mostNames = 10

func newMembershipBan() *cobra.Command {
	var s signing
	c := &cobra.Command{
		Use:   "ban NODE|PEER-ID",
		Short: "Sign that a node is refused",
		Long: `Sign that a node is refused, by its name or its peer ID, also a delegate's key. It holds for
all that was signed before, for whatever a delegate signs, and for each new key that a node of
that name makes. A newer statement about the node, of this key, lifts it.`,
		Example: "  edgemesh-agent membership ban edge-7 --key signer.key --membership cluster.yaml",
		Args:    cli.Args("NODE|PEER-ID"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			x := signed.Statement{Kind: signed.Ban, Name: args[0], Epoch: s.epoch()}
			if id, err := peer.Decode(args[0]); err == nil {
				x.Name, x.ID = "", id
			} else if err := s.knows(args[0]); err != nil {
				return err
			}
			return s.put(c.OutOrStdout(), x)
		},
	}
	s.flags(c)
	return c
}

// knows is nil unless the files have nothing of that name.
func (s *signing) knows(name string) error {
	if s.membership == "" || s.force || slices.ContainsFunc(s.old, func(x signed.Signed) bool { return x.Name == name }) {
		return nil
	}
	state, err := file.Load(s.membership)
	if err != nil {
		return cli.Usage(err)
	}
	if _, ok := state.Node(name); !ok && mesh.CheckNodeName(name) == nil {
		return cli.Usage(fmt.Errorf("%s has no node %q, nor is there a statement about it: check the name, or give --force", s.membership, name))
	}
	return nil
}

func newMembershipDelegate() *cobra.Command {
	var s signing
	var end string
	var ranges []string
	c := &cobra.Command{
		Use:   "delegate KEY",
		Short: "Let another key, such as the controller's, sign nodes of some ranges",
		Long: `Let another key sign nodes whose blocks are inside --range: blocks are claimed in a cluster
of Kubernetes, where the offline key is not. The delegate bans nobody, lifts no ban, and replaces
nothing that this key has signed. After --until, which counts as --expires of sign does, nothing
that it has signed counts: renew before. To end it immediately, ban KEY.`,
		Example: `  edgemesh-agent membership delegate 12D3KooW… --range 10.244.0.0/16 --until 2027-12-31 \
    --key signer.key`,
		Args: cli.Args("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.load(c); err != nil {
				return err
			}
			id, err := signed.ParseSigner(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			x := signed.Statement{Kind: signed.Delegation, ID: id, Epoch: s.epoch()}
			if x.Expires, err = until("--until", end); err != nil || x.Expires == 0 {
				return cmp.Or(err, cli.Usage(errors.New("--until is missing: a delegation ends, like 2027-12-31")))
			}
			if x.Blocks, err = cidrList("--range", ranges); err != nil {
				return err
			}
			return s.put(c.OutOrStdout(), x)
		},
	}
	s.flags(c)
	c.Flags().StringVar(&end, "until", "", "the day on which it ends, like 2027-12-31")
	c.Flags().StringSliceVar(&ranges, "range", nil, "in which the blocks of the nodes must be that it signs")
	return c
}

func newMembershipShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE",
		Short: "Show what a file of statements says, and who has signed it",
		Long: `Show what the statements in FILE say, and who has signed each: cluster.yaml.signed, or what
a node has accepted, in statements in its state directory.`,
		Example: `  edgemesh-agent membership show cluster.yaml.signed
  edgemesh-agent membership show /var/lib/edgemesh/statements`,
		Args: cli.Args("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := readStatements(args[0])
			if err != nil {
				return err
			}
			for _, x := range all {
				fmt.Fprintf(c.OutOrStdout(), "%s, signed %s by %s\n", x.Describe(), time.Unix(int64(min(x.Epoch, 1<<37)), 0).UTC().Format(time.RFC3339), x.Signer)
			}
			return nil
		},
	}
}

// until reads a day, the end of which is meant; "" is never.
func until(flag, day string) (uint64, error) {
	if day == "" {
		return 0, nil
	}
	t, err := time.Parse(time.DateOnly, day)
	if err != nil || t.Year() < 2026 {
		return 0, cli.Usage(fmt.Errorf("%s %q is no day to come, like 2027-12-31", flag, day))
	}
	return uint64(t.AddDate(0, 0, 1).Unix()), nil
}

// cidrList reads blocks or ranges.
func cidrList(flag string, list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p != p.Masked() {
			return nil, cli.Usage(fmt.Errorf("%s %q is not in CIDR notation, like 10.244.1.0/24", flag, text))
		}
		out = append(out, p)
	}
	return out, nil
}
