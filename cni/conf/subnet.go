// Package conf holds what the plugin reads: the network configuration on
// standard input and subnet.json, which the agent writes for it.
package conf

// Subnet is the content of RUNTIMEDIR/subnet.json. The agent writes it
// atomically; the plugin only reads it. Prefixes are in CIDR notation, MTU in
// bytes.
type Subnet struct {
	PodCIDRs     []string `json:"podCIDRs"`
	ClusterCIDRs []string `json:"clusterCIDRs"`
	MTU          int      `json:"mtu"`
}

const (
	// DefaultRuntimeDir holds subnet.json and the agent's socket.
	DefaultRuntimeDir = "/run/edgemesh"
	// DefaultDataDir holds one record per allocated address.
	DefaultDataDir = "/var/lib/cni/networks/edgemesh"
	// DefaultBridge is the bridge all pods of a node are plugged into.
	DefaultBridge = "edgemesh-br"
	// SubnetFile is the name of the subnet file in the runtime directory.
	SubnetFile = "subnet.json"
)
