// Package file is the membership source that needs no Kubernetes: one YAML file,
// cluster.yaml, the same on every node and relay.
package file

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/nat64"
)

const (
	// MaxSize bounds cluster.yaml, in bytes: over 100,000 nodes.
	MaxSize = 32 << 20
	// MaxWhole bounds one whose nodes are not written a line each, which takes much more memory.
	MaxWhole = 4 << 20
)

// document is cluster.yaml as written.
type document struct {
	PodCIDRs    []string `json:"podCIDRs"`
	Relays      []string `json:"relays"`
	WANCIDRs    []string `json:"wanCIDRs"`
	Encryption  string   `json:"encryption"`
	LAN         trust    `json:"lan"`
	HostAccess  string   `json:"hostAccess"`
	HostPorts   []string `json:"hostPorts"`
	PodDeny     []string `json:"podDenyCIDRs"`
	Banned      []string `json:"banned"`
	AdmitLabel  string   `json:"admitLabel"`
	Observers   []string `json:"observers"`
	Controllers []string `json:"controllers"`
	Policy      string   `json:"networkPolicy"`
	Policies    string   `json:"policies"`
	Carrier     carrier  `json:"carrier"`
	Nodes       []node   `json:"nodes"`
}

type carrier struct {
	Sealed string `json:"sealed"`
}

type trust struct {
	Trusted []string `json:"trusted"`
}

type node struct {
	Name     string            `json:"name"`
	PeerID   string            `json:"peerID"`
	PodCIDRs []string          `json:"podCIDRs"`
	Site     string            `json:"site"`
	Labels   map[string]string `json:"labels"`
}

// Load reads and checks the membership in path. The error names the file; it is a
// *mesh.Invalid with every problem's YAML key, unless the file could not be read at all
// (for example fs.ErrNotExist).
func Load(path string) (mesh.State, error) {
	f, err := strict.Open(path, MaxSize)
	if err != nil {
		return mesh.State{}, err
	}
	defer f.Close()
	return parse(path, f)
}

// parse reads and checks the membership in data, the content of path. The error is a *mesh.Invalid, or data's.
func parse(path string, data io.ReadSeeker) (mesh.State, error) {
	bad := mesh.Invalid{File: path}
	doc, nodes, err := parseLines(data)
	if err != nil {
		if doc, err = parseWhole(data, &bad); err != nil {
			return mesh.State{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := bad.Err(); err != nil {
		return mesh.State{}, err
	}
	s := doc.state(&bad)
	if err := bad.Err(); err != nil {
		return mesh.State{}, err
	}
	if nodes != nil {
		s.Nodes = nodes
	}
	if s.PolicyFile != "" && !filepath.IsAbs(s.PolicyFile) {
		s.PolicyFile = filepath.Join(filepath.Dir(path), s.PolicyFile)
	}
	if err := s.Validate(); err != nil {
		var invalid *mesh.Invalid
		if errors.As(err, &invalid) {
			invalid.File = path
		}
		return mesh.State{}, err
	}
	return s, nil
}

// parseWhole reads a document in any form.
func parseWhole(data io.ReadSeeker, bad *mesh.Invalid) (doc document, err error) {
	if _, err := data.Seek(0, io.SeekStart); err != nil {
		return doc, err
	}
	all, err := io.ReadAll(io.LimitReader(data, MaxWhole+1))
	switch {
	case err != nil:
	case len(all) > MaxWhole:
		bad.Addf("", "larger than %d bytes; up to %d if each node is a line of its own, like: - {name: edge-1, peerID: 12D3KooW…, podCIDRs: [10.244.1.0/24]}, "+
			"and no line has quotes", MaxWhole, MaxSize)
	default:
		strict.Unmarshal(all, &doc, bad)
	}
	return doc, err
}

// state turns text into values; Validate checks what they mean together.
func (d document) state(bad *mesh.Invalid) mesh.State {
	s := mesh.State{
		PodCIDRs:    prefixes(bad, "podCIDRs", d.PodCIDRs),
		WANCIDRs:    prefixes(bad, "wanCIDRs", d.WANCIDRs),
		Encryption:  cmp.Or(mesh.Encryption(d.Encryption), mesh.EncryptionAuto),
		LAN:         mesh.Trust{Trusted: prefixes(bad, "lan.trusted", d.LAN.Trusted)},
		Banned:      identities(bad, "banned", d.Banned),
		Observers:   identities(bad, "observers", d.Observers),
		Access:      access(bad, d.HostAccess, d.HostPorts, d.PodDeny),
		AdmitLabel:  d.AdmitLabel,
		Controllers: controllers(bad, d.Controllers),
	}
	s.Policies = mesh.Policies{NetworkPolicy: mesh.NetworkPolicy(d.Policy), PolicyFile: d.Policies}
	s.Carrier.Sealed = mesh.Sealed(d.Carrier.Sealed)
	s.Relays = relays(bad, d.Relays, s.PodCIDRs)
	for i, n := range d.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		s.Nodes = append(s.Nodes, mesh.Node{
			Name:     n.Name,
			PeerID:   peerID(bad, field+".peerID", n.PeerID),
			PodCIDRs: prefixes(bad, field+".podCIDRs", n.PodCIDRs),
			Site:     n.Site,
			Labels:   n.Labels,
		})
	}
	return s
}

func prefixes(bad *mesh.Invalid, field string, list []string) []netip.Prefix {
	var out []netip.Prefix
	for i, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			bad.Addf(fmt.Sprintf("%s[%d]", field, i), "%q is not a prefix in CIDR notation, like 10.244.1.0/24 or fd00:1::/64", text)
			continue
		}
		out = append(out, p)
	}
	return out
}

// Start returns the membership to start with: the one in path or, if path is missing or
// broken, the snapshot in stateDir. In the second case warning says what is wrong with
// path. Without a usable snapshot err is path's problem, together with the snapshot's if
// there is one. Call Watch after a successful Start.
func Start(path, stateDir string) (s mesh.State, warning, err error) {
	s, problem := Load(path)
	if problem == nil {
		return s, nil, nil
	}
	s, err = snapshot.Load(stateDir)
	switch {
	case err == nil:
		return s, fmt.Errorf("%w; starting from the snapshot in %s", problem, stateDir), nil
	case errors.Is(err, fs.ErrNotExist):
		return mesh.State{}, nil, problem
	}
	return mesh.State{}, nil, fmt.Errorf("%w (the snapshot is unusable too: %w)", problem, err)
}

// peerID checks text's encoding and that it holds an Ed25519 public key, the only kind
// that our programs create. Validate reports an empty one.
func peerID(bad *mesh.Invalid, field, text string) mesh.PeerID {
	if text == "" {
		return ""
	}
	id, err := peer.Decode(text)
	if err != nil {
		bad.Addf(field, "%q is not a peer ID (12D3KooW…): %v", text, err)
		return ""
	}
	if _, err := id.ExtractPublicKey(); err != nil {
		bad.Addf(field, "%q is not the peer ID of an Ed25519 key (12D3KooW…)", text)
		return ""
	}
	return mesh.PeerID(id.String())
}

// relays groups the addresses by peer ID, in the order they are first listed.
func relays(bad *mesh.Invalid, list []string, podCIDRs []netip.Prefix) []mesh.Relay {
	var out []mesh.Relay
	index := make(map[mesh.PeerID]int)
	seen := make(map[string]int)
	for i, text := range list {
		field := fmt.Sprintf("relays[%d]", i)
		id, addr, ok := relayAddr(bad, field, text, podCIDRs)
		if !ok {
			continue
		}
		if j, dup := seen[addr+"/"+string(id)]; dup {
			bad.Addf(field, "the same address as relays[%d]; remove one", j)
			continue
		}
		seen[addr+"/"+string(id)] = i
		r, known := index[id]
		if !known {
			r = len(out)
			index[id] = r
			out = append(out, mesh.Relay{PeerID: id})
		}
		out[r].Addrs = append(out[r].Addrs, addr)
	}
	return out
}

// relayAddr splits a relay's address into its peer ID and the address to dial.
func relayAddr(bad *mesh.Invalid, field, text string, podCIDRs []netip.Prefix) (mesh.PeerID, string, bool) {
	m, err := ma.NewMultiaddr(text)
	if err != nil {
		bad.Addf(field, "%q is not a multiaddr like /ip4/5.5.5.5/tcp/4470/p2p/12D3KooW…: %v", text, err)
		return "", "", false
	}
	if _, err := m.ValueForProtocol(ma.P_CIRCUIT); err == nil {
		bad.Addf(field, "%s is itself an address behind a relay; a relay must be reachable directly", text)
		return "", "", false
	}
	transport, id := peer.SplitAddr(m)
	if id == "" {
		bad.Addf(field, "%s has no peer ID; append /p2p/ and what `edgemesh-relay id` prints", text)
		return "", "", false
	}
	pid := peerID(bad, field, id.String())
	if pid == "" {
		return "", "", false
	}
	if transport == nil || !dialable(transport) {
		bad.Addf(field, "%s does not have the form …/tcp/PORT/p2p/ID, …/udp/PORT/quic-v1/p2p/ID or, for WebSocket, …/tcp/PORT/ws/p2p/ID or …/tcp/PORT/tls/ws/p2p/ID", text)
		return "", "", false
	}
	if ip, err := manet.ToIP(transport); err == nil {
		a, _ := netip.AddrFromSlice(ip)
		a = nat64.Inside(a)
		if a.IsUnspecified() || a.IsMulticast() {
			bad.Addf(field, "%s cannot be dialed", a)
			return "", "", false
		}
		for i, p := range podCIDRs {
			if p.Contains(a) {
				bad.Addf(field, "%s is inside podCIDRs[%d] (%s): the tunnel would run inside itself", a, i, p)
				return "", "", false
			}
		}
	}
	return pid, transport.String(), true
}

// dialable reports whether m is host/tcp/port, alone or with /ws, /tls/ws or /wss, or
// host/udp/port/quic-v1, with a port other than 0.
func dialable(m ma.Multiaddr) bool {
	protos := m.Protocols()
	if len(protos) < 2 {
		return false
	}
	switch protos[0].Code {
	case ma.P_IP4, ma.P_IP6, ma.P_DNS, ma.P_DNS4, ma.P_DNS6:
	default:
		return false
	}
	port, err := m.ValueForProtocol(protos[1].Code)
	if err != nil || port == "0" {
		return false
	}
	switch protos[1].Code {
	case ma.P_TCP:
		if len(protos) == 2 {
			return true
		}
		rest := m[2:].String()
		return rest == "/ws" || rest == "/tls/ws" || rest == "/wss"
	case ma.P_UDP:
		return len(protos) == 3 && protos[2].Code == ma.P_QUIC_V1
	}
	return false
}

// ParsePeerID checks a node's peer ID by the rules of cluster.yaml, for other sources of
// membership. The error is a *mesh.Invalid.
func ParsePeerID(field, text string) (mesh.PeerID, error) {
	var bad mesh.Invalid
	if text == "" {
		bad.Addf(field, "empty")
	}
	id := peerID(&bad, field, text)
	return id, bad.Err()
}

// ParseRelays groups and checks relay addresses by the rules of cluster.yaml, for other
// sources of membership. It returns the valid ones even if others are not; the error is a
// *mesh.Invalid.
func ParseRelays(list []string, podCIDRs []netip.Prefix) ([]mesh.Relay, error) {
	var bad mesh.Invalid
	out := relays(&bad, list, podCIDRs)
	return out, bad.Err()
}

// ParseAccess checks the values of hostAccess, hostPorts and podDenyCIDRs by the rules of cluster.yaml, for other sources of
// membership. The error is a *mesh.Invalid.
func ParseAccess(hostAccess string, hostPorts, podDenyCIDRs []string) (mesh.Access, error) {
	var bad mesh.Invalid
	out := access(&bad, hostAccess, hostPorts, podDenyCIDRs)
	return out, bad.Err()
}

// access turns text into values; Validate checks the rest.
func access(bad *mesh.Invalid, hostAccess string, hostPorts, podDenyCIDRs []string) mesh.Access {
	out := mesh.Access{HostAccess: cmp.Or(mesh.HostAccess(hostAccess), mesh.HostAll), PodDenyCIDRs: prefixes(bad, "podDenyCIDRs", podDenyCIDRs)}
	for i, text := range hostPorts {
		p, err := mesh.ParseHostPort(text)
		if err != nil {
			bad.Addf(fmt.Sprintf("hostPorts[%d]", i), "%v", err)
			continue
		}
		out.HostPorts = append(out.HostPorts, p)
	}
	return out
}

// ParseControllers checks a list of peer IDs like ParseIdentities.
func ParseControllers(list []string) ([]mesh.PeerID, error) {
	var bad mesh.Invalid
	out := controllers(&bad, list)
	return out, bad.Err()
}

func controllers(bad *mesh.Invalid, list []string) []mesh.PeerID {
	var out []mesh.PeerID
	for i, text := range list {
		field := fmt.Sprintf("controllers[%d]", i)
		if text == "" {
			bad.Addf(field, "empty; a controller's log says its peer ID (12D3KooW…)")
		} else if id := peerID(bad, field, text); id != "" {
			out = append(out, id)
		}
	}
	return out
}

// ParseIdentities checks the list of peer IDs and node names in a field by the rules of cluster.yaml, for other sources of
// membership. It returns the valid ones even if others are not; the error is a *mesh.Invalid.
func ParseIdentities(field string, list []string) ([]string, error) {
	var bad mesh.Invalid
	out := identities(&bad, field, list)
	return out, bad.Err()
}

// identities accepts peer IDs, which it returns in their usual form, and names of nodes. Who is meant need not exist.
func identities(bad *mesh.Invalid, field string, list []string) []string {
	var out []string
	for i, text := range list {
		field := fmt.Sprintf("%s[%d]", field, i)
		if mesh.CheckNodeName(text) == nil {
			out = append(out, text)
			continue
		}
		id, err := peer.Decode(text)
		if err != nil {
			bad.Addf(field, "%q is neither a peer ID (12D3KooW…) nor the name of a node (lower-case letters, digits, '-' and '.')", text)
			continue
		}
		out = append(out, id.String())
	}
	return out
}
