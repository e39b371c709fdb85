// Package control is the agent's local API: HTTP with JSON bodies over the unix socket
// RUNTIMEDIR/agent.sock. The agent serves it; status, ping and doctor are its clients.
// The socket's mode is 0600: root only.
package control

import (
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/cause"
)

// SocketFile is the name of the socket in the runtime directory.
const SocketFile = "agent.sock"

// Status is what `edgemesh-agent status --json` prints.
type Status struct {
	Node      string        `json:"node"`
	PeerID    string        `json:"peerID"`
	Version   string        `json:"version"`
	StartedAt time.Time     `json:"startedAt"`
	Site      string        `json:"site,omitempty"`
	NAT       NAT           `json:"nat"`
	Addresses []string      `json:"addresses"` // of the node in the mesh, at most one per IP family
	Relays    []RelayStatus `json:"relays"`
	Peers     []PeerStatus  `json:"peers"`
	Idle      int           `json:"idle,omitempty"` // members of which nothing is listed: only those in use were requested
	Pools     []Pool        `json:"pools"`          // one per IP family; empty before the first start and where another plugin has the pods

	Upkeep *Upkeep `json:"upkeep,omitempty"` // what the node sends and receives that no pod requested

	Fallbacks []Fallback         `json:"fallbacks,omitempty"` // in what the agent runs degraded
	Findings  []findings.Finding `json:"findings"`            // what is wrong, causes first; and notes
	Problems  []findings.Finding `json:"problems,omitempty"`  // Findings without notes, as until release 0.9
}

// Found are the findings; an agent of an earlier release has only problems.
func (s Status) Found() []findings.Finding {
	if s.Findings == nil {
		return s.Problems
	}
	return s.Findings
}

// Upkeep is all that no pod requested, in IP bytes with headers, since the agent started.
type Upkeep struct {
	Since       time.Time              `json:"since"`
	TxBytes     uint64                 `json:"txBytes"`
	RxBytes     uint64                 `json:"rxBytes"`
	MBPerMonth  *float64               `json:"mbPerMonth"` // at the rate since then; null in the first hour, whose rate is that of a start
	Purposes    map[string]UpkeepBytes `json:"purposes"`
	Carried     UpkeepBytes            `json:"carried"`     // what was not upkeep: pods' packets, with all that carrying them took
	Metered     bool                   `json:"metered"`     // each byte is paid for
	MeteredFrom string                 `json:"meteredFrom"` // what says so
}

// UpkeepBytes are those of one purpose.
type UpkeepBytes struct {
	Tx uint64 `json:"txBytes"`
	Rx uint64 `json:"rxBytes"`
}

// NAT is what stands between this node and the internet.
type NAT struct {
	Kind   string `json:"kind"`             // none, stable, sequential, random or unknown
	Detail string `json:"detail"`           // the same in words
	Router string `json:"router,omitempty"` // the ports that routers have granted
}

// Fallback is a feature that this host does not offer. The agent runs without it,
// degraded.
type Fallback struct {
	What   string `json:"what"`   // bbr, udp-buffers, cpus, offloads
	Effect string `json:"effect"` // what is done instead, and what it costs
	Remedy string `json:"remedy"`
}

// Pool says how full the node's blocks of one IP family are, in addresses.
type Pool struct {
	Blocks []string   `json:"blocks"`
	Size   uint64     `json:"size"`             // usable by pods; 1<<62 stands for more
	Used   int        `json:"used"`             // by existing pods
	Kept   int        `json:"kept"`             // free, but reserved for the names of deleted pods
	Oldest *time.Time `json:"oldest,omitempty"` // when the longest deleted of those pods went
}

// RelayStatus describes one relay of the membership, as seen from this node.
type RelayStatus struct {
	PeerID    string      `json:"peerID"`
	Addr      string      `json:"addr"`              // the address in use, else the first configured one
	Proxy     string      `json:"proxy,omitempty"`   // HOST:PORT of the HTTP proxy that the connection runs through
	Connected bool        `json:"connected"`         // a live connection to it exists
	Reserved  bool        `json:"reserved"`          // it holds a slot for this node, so others can reach us through it
	Spare     bool        `json:"spare,omitempty"`   // neither is needed: enough other relays are nearer
	Version   string      `json:"version,omitempty"` // as the relay says
	Knows     bool        `json:"knows,omitempty"`   // it has all signed statements that this node has
	Behind    *time.Time  `json:"behind,omitempty"`  // since when it may lack some of them; absent, too, of one that takes none
	Lacks     int         `json:"lacks,omitempty"`   // how many of them it has been sent and does not take
	Lacking   []string    `json:"lacking,omitempty"` // whom some of these are about
	RTTMs     *float64    `json:"rttMs,omitempty"`   // milliseconds; absent if not measured
	Error     string      `json:"error,omitempty"`   // why it is not connected or not reserved, with what was tried
	Cause     cause.Cause `json:"cause,omitzero"`    // the same in one of few words
}

// PeerStatus says how packets reach one other member.
type PeerStatus struct {
	Node      string            `json:"node"`
	Site      string            `json:"site,omitempty"`
	PeerID    string            `json:"peerID"`
	PodCIDRs  []string          `json:"podCIDRs"`
	Path      string            `json:"path"`                   // native, vxlan, direct, punched, relayed, none or idle
	Transport string            `json:"transport"`              // tcp, quic or sealed, of a relayed path also the relay's; ip of native, vxlan of vxlan; "" when idle
	Choice    string            `json:"transportWhy,omitempty"` // why sealed packets carry, or do not; absent where they cannot
	Endpoint  string            `json:"endpoint,omitempty"`     // where the peer is reached: a multiaddr, or the LAN address of a native or vxlan path
	NAT64     bool              `json:"nat64,omitempty"`        // the endpoint, an IPv4 address, is reached through this network's NAT64
	Proof     string            `json:"proof,omitempty"`        // of a native or vxlan path: forwarded (packets as pods send them pass) or gateway (the nodes' own do)
	Relay     string            `json:"relay,omitempty"`        // peer ID of the relay that a relayed path uses
	Datagrams string            `json:"datagrams,omitempty"`    // of a relayed path: forwarded, or in the circuit and why; absent otherwise
	RTTMs     *float64          `json:"rttMs"`                  // milliseconds; null if not measured
	Since     *time.Time        `json:"since"`                  // when the path last changed; null when idle
	Reason    string            `json:"reason"`                 // why the path is not a better one
	Offline   *time.Time        `json:"offlineSince,omitempty"` // no relay that answers has it since then; absent: one has, or it is not known
	LastHeard *time.Time        `json:"lastHeard,omitempty"`    // when something authentic last came from it; absent while there is a path, or if nothing came since this agent started
	Cause     cause.Cause       `json:"cause,omitzero"`         // why the last attempt to connect made no path, in one of few words; absent if it made one
	Silent    bool              `json:"-"`                      // packets have waited for it for seconds, and nothing came
	Failed    bool              `json:"-"`                      // the last attempt to connect made no path
	Punch     *Punch            `json:"punch,omitempty"`        // what was tried to get a direct path; absent while none is missing
	TxBytes   uint64            `json:"txBytes"`                // IP bytes sent to the peer through the tunnel; native and vxlan bypass the agent
	RxBytes   uint64            `json:"rxBytes"`                // IP bytes received from it, likewise
	LANBytes  uint64            `json:"lanRxBytes"`             // bytes received from it past the tunnel (native and vxlan), read every few seconds
	RateMbps  *float64          `json:"rateMbps,omitempty"`     // Mbit/s that the tunnel's path took when it was last busy for long; absent if it never was
	QueueMs   *float64          `json:"queueMs,omitempty"`      // milliseconds that the oldest packet has waited here for the path; absent if none waits
	WayMs     *float64          `json:"wayMs,omitempty"`        // milliseconds that packets wait on the tunnel's path, in both directions, sockets and repairs included: its round trip minus the shortest of the last 5 to 10 minutes; absent if not measured
	Drops     uint64            `json:"drops"`                  // packets dropped, all reasons
	DropsBy   map[string]uint64 `json:"dropsBy,omitempty"`      // the same by reason
}

// Punch says what was tried to get a direct path that is missing, and what follows.
type Punch struct {
	Attempts int        `json:"attempts"`       // in a row that left these transports missing
	Last     time.Time  `json:"last"`           // when the last one ended
	Missing  []string   `json:"missing"`        // transports without a direct path: quic, tcp
	Tried    []string   `json:"tried"`          // the endpoints dialed in the last one, and what came of each
	Awaits   string     `json:"awaits"`         // what the next one waits for: nothing (it is under way), time, traffic or peer
	Next     *time.Time `json:"next,omitempty"` // not before; absent when awaiting nothing but that
}

// Error is the body of every response other than 200.
type Error struct {
	Error string `json:"error"`
}

// Policies are the NetworkPolicies in force on a node, and what they did.
type Policies struct {
	Source  string            `json:"source"`            // a file, the API, or the copy on disk
	Off     bool              `json:"off,omitempty"`     // networkPolicy: off
	Problem string            `json:"problem,omitempty"` // why the source's are not those in force
	Failure string            `json:"failure,omitempty"` // why the kernel does not hold them
	Dropped map[string]uint64 `json:"dropped"`           // packets since they are in force, by direction: ingress, egress
	Pods    []PolicyPod       `json:"pods"`              // those to which a policy applies
	Flows   []PolicyFlow      `json:"flows"`             // dropped within the last minute
}

// PolicyPod is a pod to which policies apply. A direction without any is open.
type PolicyPod struct {
	Pod       string           `json:"pod"` // NAMESPACE/NAME
	Addresses []string         `json:"addresses"`
	Ingress   *PolicyDirection `json:"ingress,omitempty"`
	Egress    *PolicyDirection `json:"egress,omitempty"`
}

// PolicyDirection is what applies in one direction.
type PolicyDirection struct {
	Closed   bool              `json:"closed,omitempty"` // the pod is new, and no source has named it yet
	Policies []string          `json:"policies"`         // that isolate it
	Hits     map[string]uint64 `json:"hits"`             // connections that a policy accepted, of all pods with the same policies
	Dropped  uint64            `json:"dropped"`          // packets within a day of the last one
	NoPort   []string          `json:"noPort,omitempty"` // ports that a policy names and nobody has, as POLICY: NAME (PROTOCOL); they match nothing
}

// PolicyFlow is packets that were dropped.
type PolicyFlow struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	Protocol  string   `json:"protocol"`
	Port      uint16   `json:"port"`
	Packets   uint64   `json:"packets"`
	Direction string   `json:"direction"` // in which it was dropped: ingress or egress
	Pod       string   `json:"pod"`       // to which the policies apply
	Policies  []string `json:"policies"`  // that isolate it
}
