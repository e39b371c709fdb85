package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/plugins"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/uplink"
)

// checkOtherCNI reports which other network plugin has left traces here.
func checkOtherCNI(confDir string, annotations map[string]string, p plan) findings.Finding {
	return plugins.Check(plugins.Plugins(confDir, annotations), p.Host.Keep, p.Self.PodCIDRs)
}

// moving says where a node stands that is to leave another network plugin for ours.
func moving(p plan, stateDir string) []findings.Finding {
	if _, begun := p.Self.Labels[mesh.MovedLabel]; !begun || !p.Host.Keep {
		return nil
	}
	return []findings.Finding{findings.Warningf("cniMode", fmt.Sprintf("continue: write `cniMode: own` to %s, take the other plugin's configuration away and reboot; or go back: kubectl label node %s %s-",
		filepath.Join(stateDir, config.HostFile), p.Self.Name, mesh.MovedLabel),
		"the move to this network has begun (label %s), but pods are still with the other plugin; they reach those of other nodes through the mesh", mesh.MovedLabel)}
}

// overlaps looks for foreign addresses and routes inside the cluster's ranges. In keep
// mode, what is inside the node's own blocks is the other plugin's, and so are routes:
// main's come before ours there.
func overlaps(pods *conf.NetConf, w mesh.Host) findings.Finding {
	if !w.Keep {
		return overlapFinding(upkeep.Overlaps(pods))
	}
	conflicts, err := overlap.Find(w.ClusterCIDRs, overlap.Ours(host.BridgeName))
	return overlapFinding(plugins.Beside(conflicts, w.Blocks), err)
}

// refuseRival refuses to begin beside another pod network: half of the pods would be in each. Where the runtime has our
// configuration, pods depend on this agent, and doctor says what else is there.
func refuseRival(cfg config.Config) error {
	if cfg.CNIMode == config.CNIKeep || cfg.CNIConfDir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(cfg.CNIConfDir, cniconf.ConflistName)); err == nil {
		return nil
	}
	f, found := plugins.Rival(cfg.CNIConfDir)
	if !found {
		return nil
	}
	return configError(&config.KeyError{Key: "cniMode", Err: fmt.Errorf("%s has the pods of this node (%s): to leave them with it, set keep "+
		"(chart: agent.cniMode); to replace it, drain the node, uninstall that network and remove its files from %s", f.Name,
		strings.Join(f.Evidence, ", "), cfg.CNIConfDir)})
}

// warnLiving says, before anything is changed, whose pods lose their network now: those of a bridge with an address in the pod ranges, which
// another network, such as a Flannel without its configuration, has left.
func warnLiving(w mesh.Host, log *slog.Logger) {
	if w.Keep {
		return
	}
	conflicts, _ := overlap.Find(w.ClusterCIDRs, overlap.Ours(host.BridgeName)) // doctor says what keeps it from being read
	links, _ := rtnetlink.Links()
	for _, c := range conflicts {
		ports := 0
		for _, l := range links {
			if l.Attrs().Name != c.Device || l.Type() != "bridge" || c.Route {
				continue
			}
			for _, p := range links {
				if p.Attrs().MasterIndex == l.Attrs().Index {
					ports++
				}
			}
		}
		if ports > 0 {
			log.Warn("pods of another network on this node are cut off from now on: its addresses are in the pod ranges", "bridge", c.Device, "address", c.Other, "pods", ports,
				"remedy", "drain the node and restart it, so that they are made again in this network; or cniMode: keep")
		}
	}
}

// refuseLAN is ErrLANInside if this node's own LAN is inside the pod range and nothing is
// set up yet: the tunnel would take what the host sends there, what comes from there would
// be dropped as forged, and nobody could reach the host to fix it. A host that is set up
// already has lost that LAN; ending now would take the network from its pods, too.
func refuseLAN(w mesh.Host) error {
	if w.Keep {
		return nil // main's routes come before ours
	}
	present, err := host.Present()
	if err != nil || present {
		return err
	}
	conflicts, err := overlap.Find(w.ClusterCIDRs, overlap.Ours(host.BridgeName))
	if err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	if found := lanConflicts(conflicts, links); len(found) > 0 {
		return fmt.Errorf("%w: %s", ErrLANInside, strings.Join(found, "; "))
	}
	return nil
}

// lanConflicts are those with an Ethernet network of other hosts. Bridges to containers do
// not count, nor do the single addresses that plugins give to pods' interfaces.
func lanConflicts(conflicts []overlap.Conflict, links []netlink.Link) []string {
	var out []string
	for _, c := range conflicts {
		if inLAN(c, links) {
			out = append(out, c.String())
		}
	}
	return out
}

func inLAN(c overlap.Conflict, links []netlink.Link) bool {
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == c.Device })
	return i >= 0 && !c.Route && !c.Other.IsSingleIP() && len(links[i].Attrs().HardwareAddr) == 6 && uplink.Indexes(links)[links[i].Attrs().Index]
}

// overlapFinding grades conflicts. An address breaks things: our rule takes what is sent
// to it, and our firewall drops what it sends. A route is only shadowed by ours.
func overlapFinding(conflicts []overlap.Conflict, err error) findings.Finding {
	const check = "addresses"
	const remedy = `give that network other addresses (docker: "bip" and "default-address-pools"), or the cluster other podCIDRs`
	if errors.Is(err, conf.ErrNoSubnet) { // which is for cni to say
		return findings.Skippedf(check, "it is checked once this node has its blocks", "%v", err)
	}
	if err != nil {
		return findings.Warningf(check, "fix the cause", "%v", err)
	}
	var lines []string
	broke := false
	for _, c := range conflicts {
		lines = append(lines, c.String())
		broke = broke || !c.Route
	}
	switch text := strings.Join(lines, "; "); {
	case broke:
		return findings.Brokenf(check, remedy, "%s", text)
	case len(lines) > 0:
		return findings.Warningf(check, remedy, "%s (packets there go to the pod network)", text)
	}
	return findings.Okayf(check, "no other network on this node is inside the cluster's ranges")
}
