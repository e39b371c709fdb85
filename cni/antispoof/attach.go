package antispoof

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/cni/fault"
)

// ErrUnsupported means that the kernel has no BPF for traffic control.
var ErrUnsupported = errors.New("kernel cannot filter with BPF (CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF)")

const filterName = "edgemesh_spoof"

// Attach puts the filter for a pod on the host end of its veth pair.
//
// From Linux 6.6 on it uses the device's TCX hook, which leaves the ingress qdisc to
// others: the reference bandwidth plugin adds one, and fails if there already is one.
// Older kernels get a clsact qdisc. The error wraps ErrUnsupported if the kernel has
// neither.
func Attach(host netlink.Link, mac net.HardwareAddr, addrs []netip.Addr) error {
	filter, err := Program(mac, addrs)
	if err != nil {
		return err
	}
	prog, err := loadFilter(filter)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) {
			err = errors.Join(ErrUnsupported, err)
		}
		return fmt.Errorf("anti-spoofing: load the filter: %w", err)
	}
	defer prog.close() // the device keeps the program
	if err = attachTCX(host.Attrs().Index, prog); err == nil {
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

func attachClsact(host netlink.Link, prog program) error {
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
		Fd: prog.fd, Name: filterName, DirectAction: true,
	})
}

// Attached reports whether the filter is on the device.
func Attached(host netlink.Link) (bool, error) {
	if slices.Contains(onTCX(host.Attrs().Index), filterName) {
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
