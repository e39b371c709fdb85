// Package conf reads the plugin's input: the network configuration on standard input,
// and subnet.json, which the agent writes.
package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Subnet is the content of RUNTIMEDIR/subnet.json. The agent writes it
// atomically; the plugin only reads it. Prefixes are in CIDR notation, MTU in
// bytes.
type Subnet struct {
	PodCIDRs     []string `json:"podCIDRs"`
	ClusterCIDRs []string `json:"clusterCIDRs"`
	MTU          int      `json:"mtu"`
	Reserved     []string `json:"reserved,omitempty"` // addresses inside podCIDRs that no pod gets
	// Directory has the records that the agent reads; absent where it reads none.
	Directory *Directory `json:"directory,omitempty"`
}

const (
	// DefaultRuntimeDir holds subnet.json and the agent's socket.
	DefaultRuntimeDir = "/run/edgemesh"
	// DefaultDataDir holds one record per allocated address.
	DefaultDataDir = "/var/lib/cni/networks/edgemesh"
	// PodAlias starts the alias of every pod's interface on the host.
	PodAlias = "edgemesh pod "
	// DefaultBridge is the bridge that a node's pods are attached to.
	DefaultBridge = "edgemesh-br"
	// SubnetFile is the name of the subnet file in the runtime directory.
	SubnetFile = "subnet.json"
)

const (
	defaultMTU = 1500
	minMTU     = 1280 // RFC 8200 section 5
	maxMTU     = 65535
)

// ErrNoSubnet means that subnet.json does not exist yet, or is invalid.
var ErrNoSubnet = errors.New("this node's pod subnet is not known yet")

// Pools is a Subnet checked and parsed.
type Pools struct {
	Blocks  []netip.Prefix // the node's own, masked, in the order of podCIDRs
	Cluster []netip.Prefix
	MTU     int // bytes
	// Reserved are addresses that no pod gets: kubelet still reports one of a block that the node had.
	Reserved []AddrRange
	// Directory has the records that the agent reads; nil: it did not say.
	Directory *Directory
}

// LoadSubnet reads the subnet file of runtimeDir. The error wraps ErrNoSubnet whether the
// file is missing or broken, because the agent writes it again when it starts.
func LoadSubnet(runtimeDir string) (Pools, error) {
	path := filepath.Join(runtimeDir, SubnetFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return Pools{}, fmt.Errorf("%w: %w", ErrNoSubnet, err)
	}
	p, err := ParseSubnet(b)
	if err != nil {
		return Pools{}, fmt.Errorf("%w: %s: %w", ErrNoSubnet, path, err)
	}
	return p, nil
}

// subnetPoll is how often AwaitSubnet looks.
const subnetPoll = 50 * time.Millisecond

// AwaitSubnet is LoadSubnet, but gives an agent that starts at the same time as the pod
// some time to write the file.
func AwaitSubnet(runtimeDir string, patience time.Duration) (Pools, error) {
	deadline := time.Now().Add(patience)
	for {
		p, err := LoadSubnet(runtimeDir)
		if err == nil || !time.Now().Before(deadline) {
			return p, err
		}
		time.Sleep(subnetPoll)
	}
}

// ParseSubnet checks the content of a subnet file. Errors name the key.
func ParseSubnet(b []byte) (Pools, error) {
	var s Subnet
	if err := json.Unmarshal(b, &s); err != nil {
		return Pools{}, err
	}
	p := Pools{MTU: s.MTU, Directory: s.Directory}
	if p.MTU == 0 {
		p.MTU = defaultMTU
	}
	if p.MTU < minMTU || p.MTU > maxMTU {
		return Pools{}, fmt.Errorf("mtu: %d is outside %d..%d", s.MTU, minMTU, maxMTU)
	}
	var err error
	if p.Blocks, err = parsePrefixes("podCIDRs", s.PodCIDRs); err != nil {
		return Pools{}, err
	}
	if p.Cluster, err = parsePrefixes("clusterCIDRs", s.ClusterCIDRs); err != nil {
		return Pools{}, err
	}
	for _, s := range s.Reserved {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return Pools{}, fmt.Errorf("reserved: %w", err)
		}
		p.Reserved = append(p.Reserved, AddrRange{First: a, Last: a})
	}
	if len(p.Blocks) == 0 {
		return Pools{}, errors.New("podCIDRs: empty")
	}
	for i, b := range p.Blocks {
		if b.Addr().BitLen()-b.Bits() < 2 {
			return Pools{}, fmt.Errorf("podCIDRs: %s has no room for pods", b)
		}
		for _, c := range p.Blocks[:i] {
			if b.Overlaps(c) {
				return Pools{}, fmt.Errorf("podCIDRs: %s and %s overlap", c, b)
			}
		}
	}
	return p, nil
}

func parsePrefixes(key string, in []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range in {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s: %q is not a CIDR block", key, s)
		}
		if p.Bits() == 0 {
			return nil, fmt.Errorf("%s: %q is every address, not a block", key, s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Block is the block of p that holds a.
func (p Pools) Block(a netip.Addr) (netip.Prefix, bool) {
	for _, b := range p.Blocks {
		if b.Contains(a) {
			return b, true
		}
	}
	return netip.Prefix{}, false
}

// Ranges are all prefixes of p: no other network on the node may use them.
func (p Pools) Ranges() []netip.Prefix { return slices.Concat(p.Blocks, p.Cluster) }
