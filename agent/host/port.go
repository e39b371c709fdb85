package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/probe"
)

// tellsInput reports whether the kernel says in POSTROUTING on which interface a packet came in: Linux 5.7 and later.
func tellsInput() bool {
	var u unix.Utsname
	var major, minor int
	_ = unix.Uname(&u)
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 5 || major == 5 && minor >= 7
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
	log *netlink.Conn
	raw syscall.RawConn // log's
	b   [1 << 16]byte   // what was read last
}

// What is written to and read of the kernel's log (linux/netfilter/nfnetlink_log.h).
const (
	logPacket  = unix.NFNL_SUBSYS_ULOG << 8
	logConfig  = unix.NFNL_SUBSYS_ULOG<<8 | 1
	configCmd  = 1 // NFULA_CFG_CMD
	configMode = 2 // NFULA_CFG_MODE
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
	if p.log, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return nil, fmt.Errorf("host: port for probes: %w", err)
	}
	_ = errors.Join(p.log.SetReadBuffer(logBuffer), p.log.SetOption(netlink.NoENOBUFS, true))                                                                                                            // without the right to it, the default
	attrs, _ := netlink.MarshalAttributes([]netlink.Attribute{{Type: configCmd, Data: []byte{1}}, {Type: configMode, Data: []byte{0, 0, 0xff, 0xff, 2, 0}}, {Type: configAt, Data: []byte{0, 0, 0, 1}}}) // bind, copy packets, immediately
	_, err = p.log.Execute(netlink.Message{
		Header: netlink.Header{Type: logConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append([]byte{unix.AF_UNSPEC, 0, plan.ForwardGroup >> 8, plan.ForwardGroup & 0xff}, attrs...),
	})
	if err == nil {
		p.raw, err = p.log.SyscallConn()
	}
	if err == nil {
		p.tap, err = probe.NewPort(plan.PortName, mtu)
	}
	if err != nil {
		p.log.Close()
		return nil, fmt.Errorf("host: port for probes: %w", err)
	}
	return p, nil
}

// Send hands the kernel a packet as from a pod.
func (p *Port) Send(packet []byte) error {
	_, err := p.tap.Write(probe.Frame(packet))
	return err
}

// Take calls f with each packet that was taken since, and the interface it came in on, "" if that is gone. It does not wait.
func (p *Port) Take(f func(b []byte, link string)) {
	_ = p.raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), p.b[:], unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			messages, _ := syscall.ParseNetlinkMessage(p.b[:n])
			for _, m := range messages {
				if m.Header.Type != logPacket || len(m.Data) < 4 {
					continue
				}
				link, _ := unix.NewIfreq("")
				if index := attribute(m.Data[4:], logIndev); len(index) == 4 {
					link.SetUint32(binary.BigEndian.Uint32(index))
					_ = unix.IoctlIfreq(int(fd), unix.SIOCGIFNAME, link)
				}
				f(attribute(m.Data[4:], logPayload), link.Name())
			}
		}
	})
}

// Close closes it; the kernel deletes the device.
func (p *Port) Close() {
	_ = p.tap.Close()
	_ = p.log.Close()
}
