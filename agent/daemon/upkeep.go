package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

// reconcileEvery is how often the plugin's records are compared with the pods'
// interfaces. It is longer than the store waits for an ADD in progress.
const reconcileEvery = 5 * time.Minute

// reconcile does the work of the plugin's GC, which runtimes before specification 1.1.0
// never call: after a power cut most pods vanish without DEL.
func reconcile(ctx context.Context, pods *conf.NetConf, log *slog.Logger) {
	reported := ""
	for {
		reported = reconcileOnce(pods, reported, log)
		if !wake.Sleep(ctx, reconcileEvery) {
			return
		}
	}
}

// reconcileOnce logs what it changed, and an error unless that is the one in reported. It
// returns the error for the next call.
func reconcileOnce(c *conf.NetConf, reported string, log *slog.Logger) string {
	freed, restored, err := upkeep.Reconcile(c)
	if freed > 0 || restored > 0 {
		log.Info("corrected the records of pod addresses", "freed", freed, "restored", restored)
	}
	if err == nil {
		return ""
	}
	if err.Error() != reported {
		log.Warn("could not compare the records of pod addresses with the existing pods", "dataDir", c.DataDir, "err", err)
	}
	return err.Error()
}

// manyPods is how many pods a finding names.
const manyPods = 5

// strays names the pods whose addresses are not in this node's blocks. They were made before it got these; nothing but a new
// sandbox gives them other addresses.
func strays(pods *conf.NetConf, w mesh.Host) findings.Finding {
	if w.Keep {
		return findings.Okayf("pods", "another plugin has the pods")
	}
	found, err := upkeep.Strays(pods)
	found = slices.DeleteFunc(found, func(r ipam.Record) bool { // the host has no IPv6 at the moment
		return mesh.Inside(w.Blocks, netip.PrefixFrom(r.IP, r.IP.BitLen()))
	})
	if err != nil && !errors.Is(err, conf.ErrNoSubnet) { // a missing subnet file is for cni to say
		return findings.Warningf("pods", "fix the cause: `edgemesh-cni ipam fsck` looks at the records", "the addresses of pods cannot be read: %v", err)
	}
	if len(found) == 0 {
		used := 0
		for _, p := range pools(pods, slog.New(slog.DiscardHandler)) {
			used += p.Used
		}
		return findings.Okayf("pods", "%s in use by pods, none outside of this node's blocks %v", wording.Count(used, "address"), w.Blocks)
	}
	return findings.Brokenf("pods", "delete these pods, so that their successors get addresses of this node's blocks; a static pod: crictl stopp $(crictl pods -q --name POD)",
		"%s: not in this node's blocks, which it got after these pods were made; nobody reaches them", named(found))
}

// named are the pods of some records.
func named(records []ipam.Record) string {
	var names []string
	for _, r := range records[:min(len(records), manyPods)] {
		names = append(names, fmt.Sprintf("%s/%s (%s)", r.Namespace, r.Pod, r.IP))
	}
	if more := len(records) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// aside names pods in which this network is a further one and that reach other nodes' pods by the first one. Errors are for strays to say.
func aside(pods *conf.NetConf, w mesh.Host) []findings.Finding {
	if w.Keep {
		return nil
	}
	found, err := upkeep.Aside(pods)
	if err != nil || len(found) == 0 {
		return nil
	}
	return []findings.Finding{findings.Notef("pods", "%s: another network has their default route, and the plugin of a release before made them: what they send to pods of "+
		"other nodes leaves by that network until they are made again", named(found))}
}

// pools is how full the node's blocks are, per IP version. It is empty without a subnet
// file, and if the records cannot be read.
func pools(c *conf.NetConf, log *slog.Logger) []control.Pool {
	usage, err := upkeep.Usage(c)
	if err != nil && !errors.Is(err, conf.ErrNoSubnet) {
		log.Warn("could not read how many pod addresses are in use", "dataDir", c.DataDir, "err", err)
		return []control.Pool{}
	}
	return poolStatus(usage)
}

// poolStatus is never nil: status prints a list.
func poolStatus(usage []ipam.Usage) []control.Pool {
	out := []control.Pool{}
	for _, u := range usage {
		p := control.Pool{Blocks: wording.Texts(u.Blocks), Size: u.Size, Used: u.Used, Kept: u.Kept}
		if !u.Oldest.IsZero() {
			p.Oldest = &u.Oldest
		}
		out = append(out, p)
	}
	return out
}
