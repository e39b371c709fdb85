package findings

import "slices"

// Seen says who can see a finding.
type Seen string

// Who can see: the running agent by itself, continuously; doctor's probes; doctor while it follows packets to one address.
const (
	ByStatus Seen = "status"
	ByDoctor Seen = "doctor"
	ByPath   Seen = "doctor NODE or POD-IP"
)

// Kind describes all findings of one ID.
type Kind struct {
	ID     string
	Seen   Seen
	Cause  string
	Remedy string
	Event  string   // the reason of its event in Kubernetes, "" for none
	Former string   // its name as a check until release 0.9, where that was another
	Hides  []string // IDs of what follows from it while it is broken
	Same   []string // IDs of what follows from it for the same subject, whatever its severity
}

// peers are findings of other nodes, hidden by what cuts this one off; relays are of relays.
var (
	peers  = []string{"peer-offline", "peer-unreachable", "relayed"}                                                           //nolint:gochecknoglobals // a constant
	relays = []string{"relay-unreachable", "relay-refuses", "proxy", "udp", "clock"}                                           //nolint:gochecknoglobals // a constant
	state  = []string{"routes", "rules", "vxlan", "guard", "snat", "firewall", "interfaces", "bridge", "tun", "paths", "host"} //nolint:gochecknoglobals // a constant
)

// Log is how to see the agent's.
const Log = "`journalctl -u edgemesh-agent`, in Kubernetes `kubectl logs` of its pod"

const (
	repaired = "the agent repairs it within seconds; if it returns, another program undoes it: find and stop that program"
	far      = "see the finding's own text: it names the node, the file or the rule"
)

// Kinds are all kinds of findings. What can be the cause of others comes first.
var Kinds = []Kind{ //nolint:gochecknoglobals // a constant
	{ID: "agent", Seen: ByStatus, Cause: "the agent does not run, or does not answer", Remedy: "start or restart it; the end of its log names the cause: " + Log},
	{ID: "judge", Seen: ByStatus, Cause: "a part of the agent that looks for findings crashed or hangs: what it would have found is missing here", Remedy: "restart the agent and report it with `edgemesh-agent doctor --bundle FILE`"},
	{ID: "hung-loop", Seen: ByStatus, Cause: "a loop of the agent has work and makes no progress for 30 s, or for 5 minutes and more while the agent waits in the kernel for a disk, a network file system, another program's lock or a child; as a note, it was why the agent restarted itself within the last hour", Remedy: "the agent restarts itself, three times an hour at most: report the stacks in its log; where it waits in the kernel it does not: repair what it waits for"},
	{ID: "key", Seen: ByStatus, Cause: "identity.key cannot be read, is new or not the one that the agent started with: pods of this node have their network as the last membership says, but reach no other node until it is good; about `nodeName`: the host has another name than the member with this key, which counts", Remedy: "restore the file, or register the new peer ID and restart the agent; set `nodeName`"},
	{ID: "clone", Seen: ByStatus, Hides: slices.Concat([]string{"no-relays", "no-relay-answers", "stranger", "key-mismatch", "plaintext", "lan", "uplink"}, relays, peers), Cause: "two machines use one node's key: a copied SD card, disk or VM template. One of them keeps the node's traffic, the one on whose hardware the key was made or else the one that relays and peers knew first; the other one stands by, and its pods reach no other node (broken there, a warning on the one that keeps the traffic and on their peers)", Remedy: "make the copy a node of its own: on it, remove identity.key, identity.hardware and membership.json from the state directory, restart the agent and register the new peer ID; or switch it off. To have it carry the node instead, switch the other one off, then remove identity.hardware on it alone and restart its agent"},
	{ID: "ports", Seen: ByStatus, Cause: "another program has the port that the agent uses where none is configured: it uses another one until the next start", Remedy: "stop the other program and restart the agent, or set `listen` or `metricsAddress`"},
	{ID: "resolver", Seen: ByStatus, Cause: "the agent's container cannot see that the host has other name servers now: `/etc/resolv.conf` was replaced, and the files of NetworkManager, systemd-resolved, resolvconf, netconfig and ConnMan say nothing", Remedy: "nothing while the former name servers answer; otherwise delete the agent's pod, whose successor mounts the file of now, or list relays by address, too"},
	{ID: "membership", Seen: ByStatus, Event: "MeshMembershipOutdated", Cause: "the source of the membership is unreachable or invalid: the last good one is in force", Remedy: "fix the file, or the connection to the API, that it names; it is reloaded automatically"},
	{ID: "controller", Seen: ByStatus, Cause: "no controller runs, or a pod of it cannot, and one of an older release may run on where this one may not. Without any packets flow, but no NodeRecords are kept, surplus PodBlocks stay, and KubeEdge's new edges wait. As a note of an agent: nobody renews the controllers' Lease", Remedy: "label a node that you trust with the cluster `node-restriction.kubernetes.io/edgemesh-controller` (the chart's `controller.label`) where the control plane shows no Node; `kubectl describe deployment edgemesh-controller` names other causes. With `controller.enabled: false`: `kubectl patch podnetwork cluster --subresource=status --type=merge -p '{\"status\":{\"recordsLease\":null}}'`"},
	{ID: "uplink", Seen: ByStatus, Former: "uplinks", Hides: slices.Concat(relays, peers), Cause: "no interface that leads off this host has an address and a route to relays or peers", Remedy: "plug in the cable or bring up the interface; check its address and the default route"},
	{ID: "no-relay-answers", Seen: ByStatus, Former: "uplinks", Hides: slices.Concat([]string{"proxy", "udp"}, peers), Cause: "none of several relays answers, nor does any peer: the site has no internet connection, a firewall drops it, or all relays are off", Remedy: "check this site's internet connection and what outgoing TCP and UDP its firewall lets pass, which `edgemesh-agent netcheck` measures; if another site's nodes say the same, start the relays"},
	{ID: "captive-portal", Seen: ByDoctor, Hides: slices.Concat([]string{"no-relay-answers"}, relays, peers), Cause: "this network's captive portal answers in place of the relays: it lets nobody out who has not logged in on its page", Remedy: "log in on the page that it names, from this network, or have the device exempted"},
	{ID: "names", Seen: ByDoctor, Hides: state, Cause: "another program uses our interfaces' names, tables or ports", Remedy: "rename or delete what it names, and restart the agent"},
	{ID: "host", Seen: ByStatus, Cause: "the kernel's state could not be compared or repaired", Remedy: "fix the cause; the agent tries again every 2 s"},
	{ID: "undone", Seen: ByStatus, Cause: "another program undoes what the agent sets in the kernel: the same repair was made five times or more, each within ten minutes of the one before", Remedy: "find and stop the program: a network or firewall service, a timer, configuration management. `opensnoop` (bcc) names who writes under /proc/sys, `nft monitor` who changes nftables; `kernel state repaired` in the agent's log has the first five times, then again after ten minutes of rest"},
	{ID: "forwarding", Seen: ByStatus, Cause: "forwarding, or a setting that pods' packets need, is off", Remedy: repaired},
	{ID: "interfaces", Seen: ByStatus, Cause: "another program, one that configures every interface it finds, gave interfaces of the pod network addresses or routes, which the agent removed", Remedy: "keep that program off the interfaces `edgemesh-*` and `veth*`: [compatibility.md](compatibility.md#programs-that-configure-every-interface) says how for each"},
	{ID: "bridge", Seen: ByDoctor, Cause: "the pods' bridge is missing, down or different", Remedy: repaired},
	{ID: "tun", Seen: ByDoctor, Hides: []string{"routes", "way"}, Cause: "the TUN is missing, down or different", Remedy: repaired},
	{ID: "vxlan", Seen: ByDoctor, Cause: "the VXLAN interface is missing or different", Remedy: repaired},
	{ID: "routes", Seen: ByDoctor, Cause: "routes of the pod network are missing or different", Remedy: repaired},
	{ID: "rules", Seen: ByDoctor, Cause: "routing rules of the pod network are missing or different", Remedy: repaired},
	{ID: "guard", Seen: ByDoctor, Cause: "the rules against forged sources are missing or different", Remedy: repaired},
	{ID: "snat", Seen: ByDoctor, Cause: "the rules that translate the node's own packets are missing or different", Remedy: repaired},
	{ID: "firewall", Seen: ByDoctor, Cause: "the jump to our rules is gone or displaced", Remedy: repaired},
	{ID: "paths", Seen: ByDoctor, Cause: "the kernel's routes of LAN paths differ", Remedy: repaired},
	{ID: "bridge-filter", Seen: ByStatus, Cause: "the kernel module br_netfilter is missing. As a note: the host forwards between its own pods in place of the bridge. As a warning, where nf_tables is missing, too: what pods of one node send each other passes no firewall rule, and a Service times out whose endpoint is on the client's own node", Remedy: "run `modprobe br_netfilter` and list br_netfilter in /etc/modules-load.d; the agent switches it on for its own bridge. Where modprobe does not find it, use a kernel with CONFIG_BRIDGE_NETFILTER, or with nf_tables"},
	{ID: "network-policy", Seen: ByStatus, Cause: "NetworkPolicies are not in force as written: their source is invalid or unreachable, and those before are in force; or the kernel refuses them, and the text names the policy; or new pods in namespaces with policies are refused, since this kernel lacks nf_tables; or a policy of the API is not valid and closes what it selects; or a pod stays closed, since no source of policies names it; or the policies in force cannot be saved; or the copy of them cannot be read after a reboot, and all pods are closed; or the API has ClusterNetworkPolicies, which are not enforced. As a note: another program enforces them on this node; or policies name ports that no container has of the pods that they select here, or of their peers", Remedy: "fix what the text names; `networkPolicy: \"off\"` in the membership runs pods without policies"},
	{ID: "way", Seen: ByStatus, Cause: "a routing rule of another program takes the pod ranges before ours", Remedy: "find what adds that rule, and delete it or exclude the pod ranges from it. The agent moves its own rules before it at most three times an hour"},
	{ID: "nftables", Seen: ByStatus, Cause: "an nftables rule drops pods' packets, or whether one does is unknown", Remedy: "let the table that it names accept packets from and to the pod ranges"},
	{ID: "iptables", Seen: ByStatus, Cause: "an iptables rule drops pods' packets, or both backends have rules", Remedy: "delete the rule that it names, or let it accept the pod ranges"},
	{ID: "input", Seen: ByDoctor, Cause: "the host's firewall keeps other nodes from this node's mesh address", Remedy: "accept the pod ranges as sources"},
	{ID: "conntrack", Seen: ByStatus, Cause: "the kernel's table of connections is nearly full: once it is, new connections of the host and its pods are dropped", Remedy: "`conntrack -S` and `conntrack -L` say which address opens so many; stop it, or raise `net.netfilter.nf_conntrack_max` in /etc/sysctl.d"},
	{ID: "ipv6", Seen: ByStatus, Cause: "the node has IPv6 blocks, and its host no IPv6; where it has no others, it takes no new pods", Remedy: "enable IPv6 on the host, install ip6tables, or give the node IPv4 blocks, alone or beside those"},
	{ID: "lan", Seen: ByStatus, Cause: "the host can hold no native paths, no VXLAN paths, or neither: packets take another path or the tunnel", Remedy: "fix the cause it names, or turn them off on purpose: `lan.native`, `lan.vxlan`"},
	{ID: "upkeep", Seen: ByStatus, Cause: "what this node sends and receives by itself takes more than 100 MB a month of a metered uplink", Remedy: "upgrade relays and peers to this release; in Kubernetes run the controller; `status` shows the rate, `edgemesh_upkeep_bytes_total` the purposes"},
	{ID: "lan-forward", Seen: ByStatus, Cause: "what pods of this node send to another node's is dropped on a LAN path that both nodes' own packets pass, and on every other path: a rule for forwarded packets, or forwarding that is off, on one of the two nodes", Remedy: "on both nodes see `nft list ruleset`, `iptables -S FORWARD` and `sysctl -a` for `forwarding`: accept packets from and to the pod ranges before the rule that drops them (in DOCKER-USER, too), and switch forwarding on"},
	{ID: "plaintext", Seen: ByStatus, Cause: "packets take native or VXLAN paths, which are neither encrypted nor authenticated", Remedy: "`encryption: always` in the membership sends all packets through the tunnel; `lan: {native: false, vxlan: false}` in the agent's configuration those of one node"},
	{ID: "lan-trusted", Seen: ByStatus, Cause: "no VXLAN across routers, or where a repeater or a cloud's subnet puts its own MAC into packets: no entry of `lan.trusted` has both nodes' addresses, and their packets take the tunnel", Remedy: "nothing, if others can listen or write on the way; else the entry that it names"},
	{ID: "lan-global", Seen: ByStatus, Cause: "two nodes seem to be on one link, but have no private addresses there: a native path, which is not encrypted, uses global ones only inside an entry of `lan.trusted`", Remedy: "nothing; or add a ULA (fd00::/8) to both nodes, or the prefix that it names to `lan.trusted`"},
	{ID: "addresses", Seen: ByStatus, Cause: "another network on this host is inside the pod ranges; about `podCIDRs`: a new range or block, or after a start elsewhere any, is not in force on this node, because the host needs addresses inside it (its networks, default gateways, name servers, relays, proxy, API server, kubelet's node IP)", Remedy: "give that network other addresses (docker: `bip`, `default-address-pools`), or the cluster other `podCIDRs`"},
	{ID: "forward", Seen: ByStatus, Cause: "forwarding into the pod network is configured for ranges that are not allowed", Remedy: "correct `forward` in the agent's configuration"},
	{ID: "router", Seen: ByStatus, Cause: "the host forwards between two or more uplinks, as it did before the agent", Remedy: "if it shall not, switch forwarding off where it is switched on (/etc/sysctl.d) and restart the host: the agent then drops what goes from one uplink to another. If it shall, `forward: all` in the agent's configuration silences this"},
	{ID: "uplinks", Seen: ByStatus, Cause: "what goes from one uplink of the host to another is dropped: the host did not forward before the agent", Remedy: "nothing; where the host shall route between them (a gateway, shared internet access), `forward: all` in the agent's configuration"},
	{ID: "cni", Seen: ByStatus, Cause: "files that the CNI plugin needs are missing or old, new pods are refused, or the runtime cannot read a file of `cniConfDir` that comes before ours", Remedy: "fix the cause it names; the agent checks again every 30 s"},
	{ID: "cniMode", Seen: ByDoctor, Cause: "another network plugin is here, is missing where `cniMode: keep` needs one, or is [being left](migrate.md)", Remedy: "remove its configuration, or set `cniMode: keep`"},
	{ID: "runtime", Seen: ByDoctor, Cause: "the container runtime looks for plugins in other directories than the agent's", Remedy: "set the keys that it names in the agent's configuration"},
	{ID: "host-ports", Seen: ByStatus, Cause: "another program has removed the firewall rules for a pod's hostPorts, and the CNI plugin that makes them fails", Remedy: "fix the cause it names, or delete the pod"},
	{ID: "pods", Seen: ByStatus, Cause: "pods have addresses outside this node's blocks", Remedy: "delete these pods; their successors get addresses of this node"},
	{ID: "pool", Seen: ByStatus, Event: "MeshPoolExhausted", Cause: "the addresses for pods are used up, or nearly", Remedy: "delete pods, lower kubelet's `maxPods`, or add a block to the node"},
	{ID: "node-ip-missing", Seen: ByStatus, Former: "node-ip", Cause: "kubelet reports no address of this node", Remedy: "run `edgemesh-agent install --node-ip` on this node, or correct kubelet's --node-ip: [node-addresses.md](node-addresses.md)"},
	{ID: "node-ip", Seen: ByDoctor, Cause: "the addresses that kubelet reports are not this node's", Remedy: "[node-addresses.md](node-addresses.md)"},
	{ID: "clock", Seen: ByDoctor, Hides: slices.Concat([]string{"relay-unreachable", "relay-refuses"}, peers), Cause: "this host's clock differs from a relay's", Remedy: "set it, for instance with chrony or systemd-timesyncd"},
	{ID: "no-relays", Seen: ByStatus, Former: "relays", Cause: "the membership has no relays: only nodes that can dial each other directly connect", Remedy: "list a relay in the membership"},
	{ID: "proxy", Seen: ByStatus, Hides: peers, Cause: "the HTTP proxy gives no connection to a relay", Remedy: "see its text: credentials (`proxyCredentials`), allowed ports, or the proxy itself"},
	{ID: "secrets", Seen: ByStatus, Cause: "other users of this host may read the proxy's password, or the secret of the kubeconfig's user", Remedy: "run `chmod 600` on the file that the text names; the next release does not start with such a `proxyCredentials`"},
	{ID: "relay-unreachable", Seen: ByStatus, Former: "relays", Hides: slices.Concat([]string{"udp"}, peers), Same: []string{"udp"}, Cause: "a relay does not answer; broken if no other relay has a reservation for this node", Remedy: "start edgemesh-relay there, open its port for TCP and UDP, and check its peer ID in the membership"},
	{ID: "relay-refuses", Seen: ByStatus, Former: "relays", Hides: peers, Cause: "a relay is connected and gives this node no reservation", Remedy: "check that the relay's membership lists this node, and its limits"},
	{ID: "relay-behind", Seen: ByStatus, Cause: "a relay that pins a key does not take members and bans that are signed, for more than a minute, or may lack some, for more than five", Remedy: "compare signers in its relay.yaml with what `kubectl edgemesh relay add` prints, and see `edgemesh-relay status` there; if both are well, restart it"},
	{ID: "relay-old", Seen: ByStatus, Cause: "a relay is of an earlier minor release than this node", Remedy: "upgrade it"},
	{ID: "one-relay", Seen: ByStatus, Cause: "the membership has one relay: while that is down, what it carries stops", Remedy: "add another one"},
	{ID: "udp", Seen: ByDoctor, Cause: "a relay answers by TCP, not by UDP: fewer holes are punched", Remedy: "open its UDP port in its firewall and its provider's; if no relay answers by UDP, allow outgoing UDP at this site"},
	{ID: "ip-version", Seen: ByDoctor, Cause: "a relay answers over one IP version and not over the other, which is broken at this site, on the path or at the relay", Remedy: "see its text: [ipv6.md](ipv6.md)"},
	{ID: "relay", Seen: ByStatus, Cause: "this node is a relay and not listed as one, or the reverse", Remedy: "set `relay.enabled`, or correct the membership's relays"},
	{ID: "key-mismatch", Seen: ByStatus, Former: "keys", Event: "MeshKeyMismatch", Same: peers, Cause: "a node has another key than the membership says", Remedy: "register the peer ID that `edgemesh-agent id` prints there, or restore its key"},
	{ID: "peer-offline", Seen: ByStatus, Former: "peers", Event: "MeshPathMissing", Same: []string{"peer-unreachable"}, Cause: "no relay has a reservation of that node: its agent does not run, or it has no uplink. Only peers that packets were for are looked for, until ten minutes after the last of them", Remedy: "start the machine or its agent, and check its uplink; `edgemesh-agent doctor` there says more"},
	{ID: "peer-unreachable", Seen: ByStatus, Former: "peers", Event: "MeshPathMissing", Cause: "packets wait for that node, and nothing comes: it lost its power a moment ago, or no path to it opens", Remedy: "`edgemesh-agent netcheck` on both nodes says which end, relay or NAT is the obstacle"},
	{ID: "relayed", Seen: ByStatus, Event: "MeshPathRelayed", Cause: "packets to that node have been relayed for an hour: they arrive, slower and at the relay's expense", Remedy: "`edgemesh-agent netcheck` on both nodes says what blocks a better path"},
	{ID: "mtu", Seen: ByStatus, Cause: "a LAN path loses packets of full size", Remedy: "correct the MTU of that interface on both nodes, or repair what drops large packets"},
	{ID: "stranger", Seen: ByDoctor, Former: "strangers", Event: "MeshStranger", Cause: "a peer that is not a member connects, and is refused", Remedy: "register its key if it is a node of the cluster; otherwise nothing, or block its address"},
	{ID: "banned", Seen: ByDoctor, Cause: "a banned peer connects, and is refused", Remedy: "nothing, or remove it from `banned`"},
	{ID: "handshakes", Seen: ByStatus, Event: "MeshHandshakes", Cause: "the slots for handshakes are taken by connections that do not authenticate", Remedy: "block that address in the firewall"},
	{ID: "limits", Seen: ByDoctor, Cause: "a member goes beyond its quota of this node", Remedy: "restart the agent there; if it continues, ban it"},
	{ID: "offloads", Seen: ByDoctor, Cause: "the TUN has no offloads, which is slower", Remedy: "use a kernel of 5.4 or later with CONFIG_TUN"},
	{ID: "owner", Seen: ByPath, Cause: "the two memberships disagree about who has the address", Remedy: "bring the outdated one up to date"},
	{ID: "policy", Seen: ByPath, Cause: "`podDenyCIDRs` of this node, or a NetworkPolicy at the pod's node, refuses the packet", Remedy: "change `podDenyCIDRs` in the membership, or the NetworkPolicy that the text names"},
	{ID: "route", Seen: ByPath, Cause: "the kernel sends the packet elsewhere", Remedy: far},
	{ID: "path", Seen: ByPath, Cause: "there is no path to the node", Remedy: far},
	{ID: "node", Seen: ByPath, Cause: "the node's own address does not answer", Remedy: far},
	{ID: "pod", Seen: ByPath, Cause: "the pod does not exist, or does not answer", Remedy: far},
	{ID: "size", Seen: ByPath, Cause: "small packets pass, large ones do not", Remedy: "let ICMP \"too big\" pass through firewalls on the path, repair what else drops large packets there, or set the MTU to what passes"},
}

// Of is the kind of an ID.
func Of(id string) (Kind, bool) {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.ID == id })
	if i < 0 {
		return Kind{}, false
	}
	return Kinds[i], true
}
