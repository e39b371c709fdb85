package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/probe"
	"edgemesh/agent/host/rtnetlink"
)

// tellsInput reports whether the kernel says in POSTROUTING on which interface a packet came in: Linux 5.7 and later.
func tellsInput() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 7)
}

// ProbeAddrs are where this node may take forwarded probes, IPv4 and IPv6, invalid where it cannot.
func (h *Host) ProbeAddrs() (out [2]netip.Addr) {
	h.Paths.mu.Lock()
	defer h.Paths.mu.Unlock()
	if h.Paths.set && !h.tables.Unlogged() {
		for i, f := range h.state.Each {
			out[i] = f.Probe
		}
	}
	return out
}

// Port is the bridge's for forwarded probes, and where those of peers are logged.
type Port struct {
	tap *os.File
	log *nl.NetlinkSocket
}

// What is written to and read of the kernel's log (linux/netfilter/nfnetlink_log.h).
const (
	logPacket  = unix.NFNL_SUBSYS_ULOG << 8
	logConfig  = unix.NFNL_SUBSYS_ULOG<<8 | 1
	configCmd  = 1 // NFULA_CFG_CMD: 1 binds
	configMode = 2 // NFULA_CFG_MODE: copy range, 2 copies packets
	configAt   = 5 // NFULA_CFG_QTHRESH
	logIndev   = 4 // NFULA_IFINDEX_INDEV
	logPayload = 9 // NFULA_PAYLOAD
	logBuffer  = 4 << 20
)

// OpenPort opens the port in the network namespace of the calling thread. It goes with this process.
func (h *Host) OpenPort() (_ *Port, err error) {
	h.Paths.mu.Lock()
	mtu := h.state.MTU
	h.Paths.mu.Unlock()
	p := &Port{}
	defer func() {
		if err != nil {
			p.Close()
			err = fmt.Errorf("host: port for probes: %w", err)
		}
	}()
	if p.log, err = nl.Subscribe(unix.NETLINK_NETFILTER); err != nil {
		return nil, err
	}
	_ = p.log.SetReceiveBufferSize(logBuffer, true) // without the right to it, the default
	for _, a := range []*nl.RtAttr{nl.NewRtAttr(configCmd, []byte{1}), nl.NewRtAttr(configMode, []byte{0, 0, 0xff, 0xff, 2, 0}), nl.NewRtAttr(configAt, binary.BigEndian.AppendUint32(nil, 1))} {
		req := nl.NewNetlinkRequest(logConfig, unix.NLM_F_ACK)
		req.AddData(&nl.Nfgenmsg{ResId: binary.NativeEndian.Uint16([]byte{plan.ForwardGroup >> 8, plan.ForwardGroup & 0xff})})
		req.AddData(a)
		if err := p.configure(req); err != nil {
			return nil, fmt.Errorf("log group %d: %w", plan.ForwardGroup, err)
		}
	}
	if p.tap, err = probe.NewPort(plan.PortName, mtu); err != nil {
		return nil, err
	}
	return p, rtnetlink.QuietPort(plan.PortName)
}

// configure sends one request and waits for the answer.
func (p *Port) configure(req *nl.NetlinkRequest) error {
	if err := p.log.Send(req); err != nil {
		return err
	}
	answer, _, err := p.log.Receive()
	if err != nil {
		return err
	}
	for _, m := range answer {
		if m.Header.Type == unix.NLMSG_ERROR && m.Header.Seq == req.Seq && len(m.Data) >= 4 {
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return unix.Errno(-code)
			}
		}
	}
	return nil
}

// Send hands the kernel a packet as from a pod.
func (p *Port) Send(packet []byte) error {
	_, err := p.tap.Write(probe.Frame(packet))
	return err
}

// Run calls f with the first bytes of each packet that was taken, and the interface it came in on, until Close or an error.
func (p *Port) Run(f func(b []byte, link string)) error {
	names, read := map[uint32]string{}, time.Now()
	for {
		messages, _, err := p.log.Receive()
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if time.Since(read) > time.Second { // interfaces may have other names
			clear(names)
			read = time.Now()
		}
		for _, m := range messages {
			if m.Header.Type != logPacket || len(m.Data) < 4 {
				continue
			}
			attrs, err := nl.ParseRouteAttrAsMap(m.Data[4:])
			if in := attrs[logIndev].Value; err == nil && len(in) == 4 {
				index := binary.BigEndian.Uint32(in)
				if _, ok := names[index]; !ok {
					if l, err := net.InterfaceByIndex(int(index)); err == nil {
						names[index] = l.Name
					}
				}
				f(attrs[logPayload].Value, names[index])
			}
		}
	}
}

// Close ends Run; the kernel deletes the port.
func (p *Port) Close() {
	if p.tap != nil {
		_ = p.tap.Close()
	}
	if p.log != nil {
		p.log.Close()
	}
}
