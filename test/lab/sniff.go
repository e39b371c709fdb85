package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/test/sniff"
)

// podLink begins the names of the host's ends of pods' interfaces.
const podLink = "vethem"

// Sniff watches, from now on, what leaves the nodes' interfaces for pods in clear. strays ends that, and lists what did not go to the node
// that has the pod, by its MAC on the LAN of both: what native paths are proved for.
func (l *Lab) Sniff() (strays func() ([]string, error), err error) {
	var ranges []netip.Prefix
	for _, r := range l.Cluster.PodCIDRs {
		p, err := netip.ParsePrefix(r)
		if err != nil {
			return nil, fmt.Errorf("sniff: %w", err)
		}
		ranges = append(ranges, p)
	}
	macs := map[netip.Prefix]string{} // by block
	sniffers := map[*Node]*sniff.Sniffer{}
	strays = func() (all []string, err error) {
		for n, s := range sniffers {
			frames, failed := s.Seen()
			err = errors.Join(err, failed, s.Close())
			for _, f := range frames {
				if !toOwner(macs, f) {
					all = append(all, n.Name+": "+f.String())
				}
			}
		}
		return all, err
	}
	for _, n := range l.Nodes() {
		out, err := n.Run(context.Background(), "cat", "/sys/class/net/"+n.Uplink+"/address")
		if err == nil {
			err = ns.WithNetNSPath("/run/netns/"+n.Full, func(ns.NetNS) (err error) {
				sniffers[n], err = sniff.Start(ranges, func(link string) bool { return strings.HasPrefix(link, podLink) })
				return err
			})
		}
		if err != nil {
			delete(sniffers, n)
			_, failed := strays()
			return nil, errors.Join(fmt.Errorf("sniff on %s: %w", n.Name, err), failed)
		}
		for _, b := range n.PodCIDRs {
			macs[netip.MustParsePrefix(b)] = strings.TrimSpace(out)
		}
	}
	return strays, nil
}

// podMAC begins the MAC of each pod, which is of no use on a LAN. A fragment may show it: the node that receives it writes its own Ethernet
// header into memory that the sniffer's copy shares, as both are on one machine (ip_do_fragment in net/ipv4/ip_output.c).
const podMAC = "0a:58:"

func toOwner(macs map[netip.Prefix]string, f sniff.Frame) bool {
	for block, mac := range macs {
		if block.Contains(f.Dst) && (mac == f.To.String() || strings.HasPrefix(f.To.String(), podMAC)) {
			return true
		}
	}
	return false
}
