// Package closing names what the agent and the plugin share of nftables table inet edgemesh-policy, and has the plugin's part: a new
// pod's address is closed there until the agent has judged the pod.
package closing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
)

// Table holds NetworkPolicy. It is the agent's.
const Table = "edgemesh-policy"

// Dropped are the chains that drop what no rule accepts, by direction: ingress, egress.
var Dropped = [2]string{"dropped-in", "dropped-out"} //nolint:gochecknoglobals // a constant

// Map is the name of the map from pods' addresses to chains.
func Map(egress, v6 bool) string {
	name := "in"
	if egress {
		name = "out"
	}
	if v6 {
		return name + "6"
	}
	return name + "4"
}

// ErrRefused means that a pod in a namespace with policies cannot be closed, and so gets no network.
var ErrRefused = errors.New("NetworkPolicy cannot be enforced for this pod")

// Close closes the addresses of a new pod in the directions in which policies of its namespace isolate, whatever chain a pod before
// had there. The error wraps ErrRefused.
func Close(runtimeDir, namespace string, addrs []netip.Addr) error {
	p, err := conf.LoadPolicies(runtimeDir)
	directions := p.Closed(namespace)
	if err == nil && len(directions) == 0 {
		return nil
	}
	if err == nil && p.Refused != "" {
		err = errors.New(p.Refused)
	}
	for _, a := range withLinkLocal(addrs) {
		for _, d := range directions {
			if err == nil {
				err = element(a, d == "Egress", true)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// Forget removes what there is of the addresses of a pod that is gone.
func Forget(runtimeDir string, addrs []netip.Addr) {
	if p, err := conf.LoadPolicies(runtimeDir); err == nil && len(p.Namespaces) == 0 {
		return
	}
	for _, a := range withLinkLocal(addrs) {
		for _, egress := range []bool{false, true} {
			_ = element(a, egress, false) // it may be in no map
		}
	}
}

// withLinkLocal adds the addresses by which other pods of the node reach the pod on the bridge, whatever it was given.
func withLinkLocal(addrs []netip.Addr) []netip.Addr {
	out := slices.Clone(addrs)
	for _, a := range addrs {
		out = append(out, conf.LinkLocal(conf.PodMAC(a)))
	}
	return out
}

// element replaces an address's chain by the one that drops, or removes it, in one transaction.
func element(a netip.Addr, egress, closed bool) error {
	message := func(kind, flags int, parts ...*nl.RtAttr) *nl.NetlinkRequest {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_ACK|flags)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET})
		req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(Table)))
		req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(Map(egress, a.Is6()))))
		req.AddData(nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, nest(unix.NFTA_LIST_ELEM, parts...)))
		return req
	}
	drops := Dropped[0]
	if egress {
		drops = Dropped[1]
	}
	key := nest(unix.NFTA_SET_ELEM_KEY, nl.NewRtAttr(unix.NFTA_DATA_VALUE, a.AsSlice()))
	verdict := nest(unix.NFTA_SET_ELEM_DATA, nest(unix.NFTA_DATA_VERDICT,
		nl.NewRtAttr(unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, 1<<32+unix.NFT_JUMP)), nl.NewRtAttr(unix.NFTA_VERDICT_CHAIN, nl.ZeroTerminated(drops))))
	gone, come := message(unix.NFT_MSG_DELSETELEM, 0, key), message(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, key, verdict)
	if !closed {
		return transact(gone)
	}
	err := transact(come)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		err = transact(gone, come)
	}
	return err
}

func nest(kind int, parts ...*nl.RtAttr) *nl.RtAttr {
	out := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, p := range parts {
		out.AddChild(p)
	}
	return out
}

// patience bounds the wait for the kernel's answers.
var patience = unix.Timeval{Sec: 2} //nolint:gochecknoglobals // a constant

// transact sends messages as one transaction (linux/netfilter/nfnetlink.h: a batch). The kernel answers each.
func transact(messages ...*nl.NetlinkRequest) error {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetReceiveTimeout(&patience); err != nil {
		return err
	}
	var batch []byte
	mark := func(kind int) {
		req := nl.NewNetlinkRequest(kind, 0)
		req.AddRawData([]byte{unix.AF_UNSPEC, nl.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES})
		batch = append(batch, req.Serialize()...)
	}
	mark(unix.NFNL_MSG_BATCH_BEGIN)
	for _, m := range messages {
		batch = append(batch, m.Serialize()...)
	}
	mark(unix.NFNL_MSG_BATCH_END)
	if err := unix.Sendto(s.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("nftables table %s: %w", Table, err)
	}
	for answers := 0; answers < len(messages); {
		all, _, err := s.Receive()
		if err != nil {
			return fmt.Errorf("nftables table %s: %w", Table, err)
		}
		for _, m := range all {
			answers++
			if errno := int32(binary.NativeEndian.Uint32(m.Data)); m.Header.Type == unix.NLMSG_ERROR && errno != 0 {
				return fmt.Errorf("nftables table %s: %w", Table, unix.Errno(-errno))
			}
		}
	}
	return nil
}
