package config

import (
	"fmt"

	"edgemesh/agent/mesh"
)

// Help describes every key of the agent's configuration.
func Help() string {
	return fmt.Sprintf(`  nodeName        this node's name (default $NODE_NAME, then the host name)
  stateDir        identity.key, port, the membership's snapshot (default %s)
  runtimeDir      agent.sock, subnet.json (default %s)
  cniConfDir      gets the conflist (default %s, "" = install none)
  cniBinDir       gets edgemesh-cni (default %s, "" = install none)
  cniDataDir      records of the pods' addresses (default %s)
  cniMode         own, or keep: another network plugin makes the pods (default own)
  cni             how ours makes them: keepFor, keepOnly, exclude, promiscMode,
                  allowSpoofing, chained
  membership      {file: PATH of cluster.yaml}, or {kubernetes: {kubeconfig: PATH, server: URL}};
                  {kubernetes: {}} in a pod
  listen          multiaddrs (default TCP and QUIC on a port chosen once, IPv4 and IPv6)
  metricsAddress  /metrics, /healthz (default %s, "" = off)
  lan             paths past the tunnel: {native: true, vxlan: true, vxlanPort: %d}
  relay           this node as a relay: {enabled: false, announce: [ADDRESS…], limits: {…}}
  discovery       what it asks its own network: {mdns: true, portMapping: true}
  punch           {birthday: true} guesses ports where NATs leave no other way
  tunQueues       queues of the TUN, 1 to %d (default: by the number of processors)
  nodes           settings of single nodes, by name, in a file that many share

relay.%s`,
		DefaultStateDir, DefaultRuntimeDir, DefaultCNIConfDir, DefaultCNIBinDir, DefaultCNIDataDir,
		DefaultMetricsAddress, mesh.VXLANPort, MaxTUNQueues, RelayLimitsHelp)
}
