package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Status is what `edgemesh-agent status --json` prints.
type Status struct {
	Node      string        `json:"node"`
	PeerID    string        `json:"peerID"`
	Addresses []string      `json:"addresses"`
	Relays    []RelayStatus `json:"relays"`
	Peers     []PeerStatus  `json:"peers"`
	Pools     []PoolStatus  `json:"pools"`

	Problems []Problem `json:"problems"`
	Findings []Problem `json:"findings"` // notes, too
}

// Problem is something wrong with the host, in a Status.
type Problem struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	Detail   string `json:"detail"`
	Remedy   string `json:"remedy"`
}

// PoolStatus is the use of one family's blocks in a Status.
type PoolStatus struct {
	Blocks []string   `json:"blocks"`
	Size   uint64     `json:"size"`
	Used   int        `json:"used"`
	Kept   int        `json:"kept"`
	Oldest *time.Time `json:"oldest"`
}

// RelayStatus is one relay in a Status.
type RelayStatus struct {
	PeerID    string `json:"peerID"`
	Addr      string `json:"addr"`
	Proxy     string `json:"proxy"`
	Connected bool   `json:"connected"`
	Reserved  bool   `json:"reserved"`
	Spare     bool   `json:"spare"`
	Error     string `json:"error"`
}

// PeerStatus is one other member in a Status.
type PeerStatus struct {
	Node      string     `json:"node"`
	PeerID    string     `json:"peerID"`
	PodCIDRs  []string   `json:"podCIDRs"`
	Path      string     `json:"path"`
	Transport string     `json:"transport"`
	Choice    string     `json:"transportWhy"`
	Endpoint  string     `json:"endpoint"`
	NAT64     bool       `json:"nat64"`
	Proof     string     `json:"proof"`
	Relay     string     `json:"relay"`
	RTTMs     *float64   `json:"rttMs"`
	Since     *time.Time `json:"since"`
	Reason    string     `json:"reason"`
	TxBytes   uint64     `json:"txBytes"`
	RxBytes   uint64     `json:"rxBytes"`
	QueueMs   *float64   `json:"queueMs"`
	WayMs     *float64   `json:"wayMs"`
	Drops     uint64     `json:"drops"`
	Datagrams string     `json:"datagrams"`
}

// Peer returns the status of the named node; its Path is empty when the list
// does not have it.
func (s Status) Peer(node string) PeerStatus {
	for _, p := range s.Peers {
		if p.Node == node {
			return p
		}
	}
	return PeerStatus{}
}

// Status queries the node's agent.
func (n *Node) Status(ctx context.Context) (Status, error) {
	var s Status
	out, _, err := n.AgentCommand(ctx, "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("%s: status: %w: %s", n.Name, err, out)
	}
	return s, nil
}

// WaitReserved waits until every relay of the membership that the node needs has
// given it a reservation.
func (n *Node) WaitReserved(ctx context.Context) error {
	return Until(ctx, 50*time.Millisecond, func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		for _, r := range s.Relays {
			if !r.Reserved && !r.Spare {
				return fmt.Errorf("%s: no reservation at relay %s", n.Name, r.Addr)
			}
		}
		if len(s.Relays) == 0 {
			return fmt.Errorf("%s: status lists no relay", n.Name)
		}
		return nil
	})
}

// WaitPath waits until the node's path to the peer is one of the kinds.
func (n *Node) WaitPath(ctx context.Context, peer *Node, kinds ...string) (PeerStatus, error) {
	return n.waitPeer(ctx, peer, strings.Join(kinds, " or "),
		func(p PeerStatus) bool { return slices.Contains(kinds, p.Path) })
}

// WaitTransport waits until the node's path to the peer runs over one of the transports.
func (n *Node) WaitTransport(ctx context.Context, peer *Node, transports ...string) (PeerStatus, error) {
	return n.waitPeer(ctx, peer, strings.Join(transports, " or "), func(p PeerStatus) bool { return slices.Contains(transports, p.Transport) })
}

// waitPeer waits until the peer's status is as wanted, and returns the last one
// seen in any case.
func (n *Node) waitPeer(ctx context.Context, peer *Node, want string, is func(PeerStatus) bool) (PeerStatus, error) {
	var last PeerStatus
	err := Until(ctx, 50*time.Millisecond, func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if last = s.Peer(peer.Name); !is(last) {
			return fmt.Errorf("%s: path to %s is %q (%s), want %s; reason: %s",
				n.Name, peer.Name, last.Path, last.Transport, want, last.Reason)
		}
		return nil
	})
	return last, err
}

// AgentPing is what `edgemesh-agent ping --json` prints, as far as the lab reads
// it.
type AgentPing struct {
	Node      string   `json:"node"`
	Path      string   `json:"path"`
	Transport string   `json:"transport"`
	Relay     string   `json:"relay"`
	Sent      int      `json:"sent"`
	Received  int      `json:"received"`
	MinMs     *float64 `json:"minMs"`
	AvgMs     *float64 `json:"avgMs"`
	MaxMs     *float64 `json:"maxMs"`
}

// AgentPing probes a node or a pod through the agent.
func (n *Node) AgentPing(ctx context.Context, target string, count int) (AgentPing, error) {
	var p AgentPing
	out, stderr, err := n.AgentCommand(ctx, "ping", target, "--count", strconv.Itoa(count), "--json",
		"--runtime-dir", n.Config.RuntimeDir)
	if err != nil {
		return p, err
	}
	if stderr != "" {
		return p, fmt.Errorf("%s: ping --json wrote to standard error: %s", n.Name, stderr)
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		return p, fmt.Errorf("%s: ping: %w: %s", n.Name, err, out)
	}
	return p, nil
}
