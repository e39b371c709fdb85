package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/probe"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/internal/uplink"
	"edgemesh/internal/wake"
)

// legacyEvery is how often a Watcher calls when the firewall is legacy
// iptables, whose changes the kernel does not announce; announcedEvery is how
// often it looks whether it is.
const (
	legacyEvery    = 5 * time.Second
	announcedEvery = 30 * time.Second
)

// nftGroup is NFNLGRP_NFTABLES, and newGeneration the message that ends each
// transaction there, iptables-nft's included (linux/netfilter/nfnetlink.h,
// linux/netfilter/nf_tables.h).
const (
	nftGroup      = 7
	newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	ruleDeleted   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE
)

// behind are the chains that lead to those of the reference plugins portmap and firewall, whose DEL deletes rules there, too, and portmap's
// table without iptables.
var behind = []string{"CNI-HOSTPORT-DNAT\x00", "CNI-HOSTPORT-MASQ\x00", "CNI-FORWARD\x00", "cni_hostport\x00"} //nolint:gochecknoglobals // a constant

// What is read of the kernel's announcements of sysctls (linux/netconf.h).
const (
	sizeofNetconf     = 4 // struct netconfmsg, padded
	netconfIndex      = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING
	netconfAll        = -1
)

// Watcher hears from the kernel that our state may have changed.
type Watcher struct {
	host       *Host
	route, nft *nl.NetlinkSocket // nft nil where the kernel has no nftables
	rules      *nl.NetlinkSocket
	kernel     *netlink.Handle // lists and changes rules
	ours       map[int32]bool  // indices of bridge, TUN and VXLAN
	pods       map[int32]int   // MTUs of the host's ends of pods' interfaces, by index; 0 where one is down or not plugged in
	outer      map[int]bool    // indices of links that lead to other networks
	seen       map[int]seen
}

// seen is what makes an uplink, or its bridge, one of those that packets do not pass between.
type seen struct {
	name   string
	master int
}

// NewWatcher listens in the network namespace of the calling thread. Run, which
// must be called, closes the Watcher.
func (h *Host) NewWatcher() (*Watcher, error) {
	route, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("host: watch: %w", err)
	}
	w := &Watcher{host: h, route: route, ours: map[int32]bool{}, pods: map[int32]int{}, outer: map[int]bool{}, seen: map[int]seen{}}
	if w.rules, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE); err == nil {
		w.kernel, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("host: watch rules: %w", err)
	}
	if w.nft, err = nl.Subscribe(unix.NETLINK_NETFILTER, nftGroup); err != nil {
		w.nft = nil
	}
	for _, name := range []string{plan.BridgeName, plan.TUNName, plan.VXLANName} {
		if link, err := netlink.LinkByName(name); err == nil {
			w.ours[int32(link.Attrs().Index)] = true
		}
	}
	links, err := rtnetlink.Foreign()
	if err != nil {
		w.close()
		return nil, fmt.Errorf("host: watch: %w", err)
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index }) // what stands on another comes later
	for _, l := range links {
		w.newUplink(l)
		w.damagedPod(l)
	}
	return w, nil
}

func (w *Watcher) close() {
	for _, s := range []*nl.NetlinkSocket{w.route, w.rules, w.nft} {
		if s != nil {
			s.Close()
		}
	}
}

// betweenRules is the time between two looks at the rules: others may come and go by the hundred.
const betweenRules = 50 * time.Millisecond

// repairRules puts our rules back, and before those of other programs. It calls changed if it did, or could not.
func (w *Watcher) repairRules(ctx context.Context, changed func()) {
	switch what, err := w.host.policy.Repair(w.kernel); {
	case err != nil:
		w.host.log.Debug("rules not repaired yet", "err", err)
		changed()
	case what != "":
		w.host.repaired("rules", what)
		changed()
	}
	wake.Sleep(ctx, betweenRules)
}

// newUplink reports whether a link is, or may be, an uplink that Set does not know, or not by this name.
func (w *Watcher) newUplink(l netlink.Link) bool {
	a := l.Attrs()
	is := seen{a.Name, a.MasterIndex}
	if w.seen[a.Index] == is || !w.outer[a.Index] && !uplink.Outer(l, w.outer, false) {
		return false
	}
	w.seen[a.Index], w.outer[a.Index] = is, true
	if a.MasterIndex != 0 {
		w.outer[a.MasterIndex] = true
	}
	return true
}

// damagedPod reports whether a link is a pod's that was whole, and is down, not plugged in any longer, or carries less.
func (w *Watcher) damagedPod(l netlink.Link) bool {
	a := l.Attrs()
	if !rtnetlink.IsPod(l) {
		return false
	}
	mtu := 0
	if a.Flags&net.FlagUp != 0 && a.MasterIndex != 0 {
		mtu = a.MTU
	}
	was := w.pods[int32(a.Index)]
	w.pods[int32(a.Index)] = mtu
	return mtu < was
}

// known reports whether an interface is ours, or a pod's.
func (w *Watcher) known(index int32) bool {
	_, pod := w.pods[index]
	return pod || w.ours[index]
}

// Run calls changed, from one goroutine at a time, whenever Set may have
// something to repair, until ctx ends. Set's own changes count, too.
func (w *Watcher) Run(ctx context.Context, changed func()) {
	var mu sync.Mutex // held while changed runs, before whatever that locks
	call := func() {
		mu.Lock()
		defer mu.Unlock()
		changed()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { listen(ctx, w.route, w.ofOurs, call) })
	wg.Go(func() {
		defer w.kernel.Close()
		all := func(syscall.NetlinkMessage) bool { return true }
		listen(ctx, w.rules, all, func() { w.repairRules(ctx, call) })
	})
	if w.nft != nil {
		wg.Go(func() {
			listen(ctx, w.nft, func(m syscall.NetlinkMessage) bool {
				if deletedBehind(m) {
					w.host.flushed.Add(1)
				}
				return m.Header.Type == newGeneration
			}, call)
		})
	}
	wg.Go(func() {
		pause := legacyEvery
		for wake.Sleep(ctx, pause) {
			if pause = announcedEvery; w.nft == nil || w.host.legacy() {
				pause = legacyEvery
				call()
			}
		}
	})
	<-ctx.Done()
	w.close()
}

// legacy reports whether our chains are where the kernel announces no changes.
func (h *Host) legacy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fw.Legacy()
}

// listen calls changed when a batch of messages has one that matters, or when
// messages were lost.
func listen(ctx context.Context, s *nl.NetlinkSocket, matters func(syscall.NetlinkMessage) bool, changed func()) {
	for {
		messages, _, err := s.Receive()
		if ctx.Err() != nil {
			return
		}
		hit := errors.Is(err, unix.ENOBUFS)
		if err != nil && !hit {
			wake.Sleep(ctx, time.Second) // unexpected; do not spin
		}
		for _, m := range messages {
			hit = matters(m) || hit
		}
		if hit {
			changed()
		}
	}
}

// ofOurs reports whether a message matters (rtnetlink(7)): our interfaces, addresses
// and routes given to them or deleted, pods' interfaces that are set down, uplinks that are new or have another name, CLATs, routes
// deleted from our table, and sysctls of all, of our interfaces and of uplinks that the kernel announces: forwarding, rp_filter.
// The periodic pass finds what other programs add elsewhere.
func (w *Watcher) ofOurs(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return false
		}
		info := nl.DeserializeIfInfomsg(m.Data)
		index := info.Index
		name := attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)
		if n := nl.BytesToString(name); plan.OurLink(n) {
			w.ours[index] = m.Header.Type == unix.RTM_NEWLINK
			return true
		}
		renamed := w.ours[index]
		delete(w.ours, index)
		if info.Family != unix.AF_UNSPEC { // of a bridge's port: it does not name the link's kind
			return renamed
		}
		if m.Header.Type == unix.RTM_DELLINK {
			delete(w.outer, int(index))
			delete(w.seen, int(index))
			delete(w.pods, index)
			return renamed
		}
		link, err := netlink.LinkDeserialize(nil, m.Data)
		if err != nil {
			return renamed
		}
		damaged := w.damagedPod(link)
		stray := w.ours[int32(link.Attrs().MasterIndex)] && !rtnetlink.IsPod(link) // a port of the bridge that may have to be shut
		return w.newUplink(link) || damaged || stray || renamed
	case unix.RTM_DELADDR, unix.RTM_NEWADDR:
		if len(m.Data) < unix.SizeofIfAddrmsg {
			return false
		}
		a, ok := netip.AddrFromSlice(attribute(m.Data[unix.SizeofIfAddrmsg:], unix.IFA_LOCAL))
		return ok && m.Header.Type == unix.RTM_NEWADDR && uplink.Continuity.Contains(a) || w.known(int32(nl.DeserializeIfAddrmsg(m.Data).Index))
	case unix.RTM_NEWROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		msg := nl.DeserializeRtMsg(m.Data)
		over := attribute(m.Data[unix.SizeofRtMsg:], unix.RTA_OIF)
		return msg.Protocol != unix.RTPROT_KERNEL && msg.Protocol != plan.RouteProtocol && len(over) == 4 && w.known(int32(nl.NativeEndian().Uint32(over)))
	case unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		table := attribute(m.Data[unix.SizeofRtMsg:], unix.RTA_TABLE)
		return len(table) == 4 && slices.Contains([]uint32{plan.TableID, plan.PathTable}, nl.NativeEndian().Uint32(table))
	case unix.RTM_NEWNETCONF:
		if len(m.Data) < sizeofNetconf {
			return false
		}
		value := attribute(m.Data[sizeofNetconf:], netconfIndex)
		if len(value) != 4 {
			return false
		}
		index := int32(nl.NativeEndian().Uint32(value))
		_, outer := w.seen[int(index)] // strict filtering drops what peers send past the tunnel
		off := attribute(m.Data[sizeofNetconf:], netconfForwarding)
		return index == netconfAll || w.ours[index] || outer || len(off) == 4 && nl.NativeEndian().Uint32(off) == 0
	}
	return false
}

// deletedBehind reports whether a message says that a rule of a plugin behind ours was deleted, or a jump there.
func deletedBehind(m syscall.NetlinkMessage) bool {
	return m.Header.Type == ruleDeleted && slices.ContainsFunc(behind, func(name string) bool { return bytes.Contains(m.Data, []byte(name)) })
}

// attribute returns the value of one attribute, nil when there is none.
func attribute(b []byte, kind uint16) []byte {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range all {
		if a.Attr.Type == kind {
			return a.Value
		}
	}
	return nil
}

// WatchUplinks calls changed, from one goroutine at a time, when a link or an
// address of the host changes, until ctx ends.
func (p *Paths) WatchUplinks(ctx context.Context, changed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("host: watch uplinks: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	listen(ctx, s, func(m syscall.NetlinkMessage) bool {
		if index, ok := dropsRoutes(m); ok {
			p.suspectOver(index)
		}
		return !ofProbe(m)
	}, changed)
	return nil
}

// ofProbe reports whether a message is about a device that probes of the firewall come from.
func ofProbe(m syscall.NetlinkMessage) bool {
	return (m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK) && len(m.Data) >= unix.SizeofIfInfomsg &&
		strings.HasPrefix(nl.BytesToString(attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)), probe.PortName)
}

// dropsRoutes reports whether the kernel drops an interface's routes with the event of a
// message: the interface is set down, or its last address may be deleted. For IPv4 the kernel
// announces none of these routes.
func dropsRoutes(m syscall.NetlinkMessage) (index int, ok bool) {
	switch {
	case m.Header.Type == unix.RTM_DELADDR && len(m.Data) >= unix.SizeofIfAddrmsg:
		return int(nl.DeserializeIfAddrmsg(m.Data).Index), true
	case m.Header.Type == unix.RTM_NEWLINK && len(m.Data) >= unix.SizeofIfInfomsg:
		info := nl.DeserializeIfInfomsg(m.Data)
		return int(info.Index), info.Flags&unix.IFF_UP == 0
	}
	return 0, false
}
