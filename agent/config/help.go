package config

import (
	"fmt"

	"edgemesh/agent/mesh"
)

// Help describes every key of the agent's configuration.
func Help() string {
	return fmt.Sprintf(`  nodeName        this node's name (default $NODE_NAME, then the host name)
  stateDir        identity.key, port, the snapshot of the membership (default %s)
  runtimeDir      agent.sock, subnet.json (default %s)
  cniConfDir      where the conflist is installed (default %s, "" = not installed)
  cniBinDir       where edgemesh-cni is installed (default %s, "" = not installed)
  cniDataDir      records of the pods' addresses (default %s)
  cniMode         own, or keep: another network plugin connects the pods (default own)
  cni             options of our plugin: keepFor, keepOnly, exclude, promiscMode,
                  allowSpoofing, chained
  membership      {file: PATH of cluster.yaml}, or {kubernetes: {kubeconfig: PATH, server: URL}};
                  {kubernetes: {}} in a pod
  listen          multiaddrs (default TCP and QUIC on a port chosen once, IPv4 and IPv6)
  metricsAddress  /metrics, /healthz (default %s, "" = off)
  lan             paths that bypass the tunnel: {native: true, vxlan: true, vxlanPort: %d}
  relay           this node as a relay: {enabled: false, announce: [ADDRESS…], limits: {…}}
  discovery       what to query in this network: {mdns: true, portMapping: true}
  punch           {birthday: true} enables port guessing where NATs allow nothing else
  tunQueues       0 to %d; accepted without effect, the TUN has one queue
  nodes           settings of single nodes, by name, in a file that many nodes share

relay.%s`,
		DefaultStateDir, DefaultRuntimeDir, DefaultCNIConfDir, DefaultCNIBinDir, DefaultCNIDataDir,
		DefaultMetricsAddress, mesh.VXLANPort, MaxTUNQueues, RelayLimitsHelp)
}
