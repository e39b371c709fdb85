// Package nodeip knows this node's mesh addresses, its own in the pod network, without a running agent: what kubelet's
// --node-ip is to be, and what is wrong with what it is. DESIGN.md says why they are the node's address.
package nodeip

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/placed"
)

// subnetFile is conf.SubnetFile. The relay reads it, too, and does not import what is the plugin's.
const subnetFile = "subnet.json"

// ErrNoBlock means that this node has no block yet, so no address in the mesh.
var ErrNoBlock = errors.New("this node has no mesh address yet: its block is not known here")

// ErrNoIPv6 means that all mesh addresses are IPv6, which this host does not have.
var ErrNoIPv6 = errors.New("this node has IPv6 blocks only, and this host has no usable IPv6: enable it, or give the node an IPv4 block")

// Present returns those of addrs that an interface of this host has.
func Present(addrs []netip.Addr) ([]netip.Addr, error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	here := map[netip.Addr]bool{}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			here[p.Addr()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !here[a] }), nil
}

// Usable returns addrs without those of IPv6 where this host has no usable IPv6: its bridge never gets them. The error
// wraps ErrNoIPv6 if nothing is left.
func Usable(addrs []netip.Addr) ([]netip.Addr, error) {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6 has no such file
		return addrs, err
	}
	if strings.TrimSpace(string(off)) == "0" {
		return addrs, nil
	}
	out := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.Is6)
	if len(out) == 0 {
		return nil, ErrNoIPv6
	}
	return out, nil
}

// Load finds the mesh addresses of the named node: in the subnet file, which agents leave in runtimeDir until a reboot,
// or else in the snapshot in stateDir, with which an agent starts offline. The error wraps ErrNoBlock if neither is
// there, or the snapshot does not list the node.
func Load(runtimeDir, stateDir, node string) ([]netip.Addr, error) {
	addrs, err := Subnet(runtimeDir)
	if err != nil || len(addrs) > 0 {
		return addrs, err
	}
	file := filepath.Join(runtimeDir, subnetFile)
	s, err := snapshot.Load(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (neither %s nor %s exists)", ErrNoBlock, file, filepath.Join(stateDir, snapshot.File))
	}
	if err != nil {
		return nil, err
	}
	if n, ok := s.Node(node); ok && len(n.PodCIDRs) > 0 {
		return mesh.Addresses(n.PodCIDRs), nil
	}
	return nil, fmt.Errorf("%w (%s lists no block of node %q; set nodeName to the name it is listed under)", ErrNoBlock, filepath.Join(stateDir, snapshot.File), node)
}

// Subnet reads the mesh addresses from an agent's subnet file; none without the file.
func Subnet(runtimeDir string) ([]netip.Addr, error) {
	file := filepath.Join(runtimeDir, subnetFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s struct {
		PodCIDRs []netip.Prefix `json:"podCIDRs"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w; restart the agent, which writes it again", file, err)
	}
	return mesh.Addresses(s.PodCIDRs), nil
}

// Recorded reads, from the record in stateDir, the --node-ip that `edgemesh-agent install` gave to this node's kubelet; none
// without it.
func Recorded(stateDir string) ([]netip.Addr, error) {
	file := filepath.Join(stateDir, placed.RecordFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r struct {
		NodeIP []netip.Addr `json:"nodeIP"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r.NodeIP, nil
}
