// Package antispoof attaches the filter that keeps a pod from sending with another's addresses. It runs at the ingress of the
// host end of the pod's veth pair, before the bridge sees a frame.
//
// It passes only:
//
//	Ethernet  source = the pod's MAC; no VLAN tag; ARP, IPv4 or IPv6
//	ARP       Ethernet/IPv4; sender MAC = the pod's; sender IP = the pod's, or 0.0.0.0 (a probe, RFC 5227)
//	IPv4      source = the pod's
//	IPv6      source = the pod's, or the link-local address of its MAC;
//	          :: for ICMPv6 router and neighbour solicitations and MLD reports
//	ICMPv6    no router advertisements, no redirects; neighbour advertisements only for the pod's addresses, solicitations for
//	          their destination alone, MLD to groups of the link alone: NetworkPolicies let these pass (also behind extension headers)
//	others    no routing header with segments left; no extension header behind a
//	          fragment header, where later fragments would not show it
//
// The files:
//
//	filter.c             the filter
//	filter_bpfel.go      generated from it, as filter_bpfeb.go, which is for big-endian machines, and the .o files
//	antispoof.go         loads it and puts it on a device
package antispoof

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/fault"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go@v0.22.0 -cc clang -strip llvm-strip -cflags "-O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu" filter filter.c

// ErrUnsupported means that the kernel has no BPF for traffic control.
var ErrUnsupported = errors.New("kernel cannot filter with BPF (CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF)")

// filterName is the program's, in filter.c and in the kernel.
const filterName = "edgemesh_spoof"

// maxAddrs is how many addresses of one IP version the filter holds, as in filter.c.
const maxAddrs = 4

// load has the kernel verify the filter for a pod. Where it refuses, the error has the end of what the verifier said.
func load(mac net.HardwareAddr, addrs []netip.Addr) (*ebpf.Program, error) {
	if len(mac) != 6 {
		return nil, fmt.Errorf("%q is not an Ethernet address", mac)
	}
	var own4 [maxAddrs][4]byte
	var own6 [maxAddrs][16]byte
	var count4, count6 uint32
	for _, a := range append([]netip.Addr{conf.LinkLocal(mac)}, addrs...) {
		switch {
		case count4 == maxAddrs || count6 == maxAddrs:
			return nil, fmt.Errorf("more than %d addresses", maxAddrs)
		case a.Is4():
			own4[count4] = a.As4()
			count4++
		default:
			own6[count6] = a.As16()
			count6++
		}
	}
	spec, err := loadFilter()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{"mac": [6]byte(mac), "own4": own4, "own6": own6, "count4": count4, "count6": count6} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, err
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11 programs count as locked memory
		return nil, err
	}
	var loaded filterPrograms
	if err := spec.LoadAndAssign(&loaded, nil); err != nil {
		return nil, err
	}
	return loaded.EdgemeshSpoof, nil
}

// Attach puts the filter for a pod on the host end of its veth pair.
//
// From Linux 6.6 on it uses the device's TCX hook, which leaves the ingress qdisc to
// others: the reference bandwidth plugin adds one, and fails if there already is one.
// Older kernels get a clsact qdisc. The error wraps ErrUnsupported if the kernel has
// neither.
func Attach(host netlink.Link, mac net.HardwareAddr, addrs []netip.Addr) error {
	prog, err := load(mac, addrs)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, ebpf.ErrNotSupported) {
			err = errors.Join(ErrUnsupported, err)
		}
		return fmt.Errorf("anti-spoofing: load the filter: %w", err)
	}
	defer prog.Close() // the device keeps the program
	// No link: it would go with this process.
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: host.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return nil
	}
	if cerr := attachClsact(host, prog); cerr != nil {
		if errors.Is(cerr, unix.ENOENT) || errors.Is(cerr, unix.EOPNOTSUPP) {
			cerr = errors.Join(ErrUnsupported, cerr)
		}
		return fmt.Errorf("anti-spoofing: attach the filter to %s: %w", host.Attrs().Name, errors.Join(err, cerr))
	}
	return nil
}

func attachClsact(host netlink.Link, prog *ebpf.Program) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: host.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact qdisc: %w", err)
	}
	fault.Point("qdisc")
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: host.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS,
			Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: filterName, DirectAction: true,
	})
}

// Attached reports whether the filter is on the device.
func Attached(host netlink.Link) (bool, error) {
	if onTCX(host.Attrs().Index) {
		return true, nil
	}
	filters, err := netlink.FilterList(host, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return false, fmt.Errorf("anti-spoofing: list filters of %s: %w", host.Attrs().Name, err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == filterName {
			return true, nil
		}
	}
	return false, nil
}

// onTCX reports whether the filter is on a device's TCX hook: never on a kernel without it.
func onTCX(ifindex int) bool {
	found, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return false
	}
	for _, p := range found.Programs {
		prog, err := ebpf.NewProgramFromID(p.ID)
		if err != nil {
			continue
		}
		info, err := prog.Info()
		_ = prog.Close()
		if err == nil && info.Name == filterName {
			return true
		}
	}
	return false
}
