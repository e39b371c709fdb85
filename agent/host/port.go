package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

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

// portEvery is the time between two attempts to open a port.
const portEvery = time.Second

// port is the bridge's for forwarded probes, and where those of peers are logged. Its device goes with this process.
type port struct {
	tap *os.File
	log *netlink.Conn
	raw syscall.RawConn // log's
	b   [1 << 16]byte   // what was read last
}

// newPort opens a port in the network namespace of the calling thread.
func newPort(mtu int) (_ *port, err error) {
	p := &port{}
	if p.log, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return nil, err
	}
	_ = errors.Join(p.log.SetReadBuffer(4<<20), p.log.SetOption(netlink.NoENOBUFS, true)) // without the right to it, the default
	attrs, _ := netlink.MarshalAttributes([]netlink.Attribute{                            // linux/netfilter/nfnetlink_log.h
		{Type: 1, Data: []byte{1}},                      // NFULA_CFG_CMD: bind
		{Type: 2, Data: []byte{0, 0, 0xff, 0xff, 2, 0}}, // NFULA_CFG_MODE: copy packets
		{Type: 5, Data: []byte{0, 0, 0, 1}},             // NFULA_CFG_QTHRESH: each of them immediately
	})
	_, err = p.log.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | 1, Flags: netlink.Request | netlink.Acknowledge}, // NFULNL_MSG_CONFIG
		Data:   append([]byte{unix.AF_UNSPEC, 0, plan.ForwardGroup >> 8, plan.ForwardGroup & 0xff}, attrs...),
	})
	p.raw, _ = p.log.SyscallConn()
	if err == nil {
		p.tap, err = probe.NewPort(plan.PortName, mtu, plan.BridgeName)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// close also deletes the device.
func (p *port) close() { _ = errors.Join(p.tap.Close(), p.log.Close()) }

// ProbeAddrs are where this node may take forwarded probes, IPv4 and IPv6, invalid where it cannot. It is called by one goroutine, as are
// SendForwarded and TakeForwarded.
func (h *Host) ProbeAddrs() (out [2]netip.Addr) {
	p, s := h.Paths, h.probes.Load()
	if h.tables.Unlogged() || s == nil {
		return out
	}
	for i, f := range s.Each {
		out[i] = f.Probe
	}
	if p.port != nil && out == [2]netip.Addr{} {
		p.port.close()
		p.port = nil
	}
	if p.port == nil && out != [2]netip.Addr{} && time.Since(p.tried) >= portEvery {
		var err error
		if p.port, err = newPort(s.MTU); err != nil {
			p.log.Debug("LAN paths are proved by gateway probes alone: no port for forwarded ones", "err", err)
		}
		p.tried = time.Now()
	}
	if p.port == nil {
		return [2]netip.Addr{}
	}
	return out
}

// SendForwarded hands the kernel packets as from a pod. After an error there is no port until ProbeAddrs opens one.
func (p *Paths) SendForwarded(packets [][]byte) error {
	for _, b := range packets {
		if p.port == nil {
			return fmt.Errorf("host: port for probes: %w", os.ErrClosed)
		}
		if _, err := p.port.tap.Write(probe.PodFrame(b)); err != nil {
			p.port.close()
			p.port = nil
			return fmt.Errorf("host: port for probes: %w", err)
		}
	}
	return nil
}

// TakeForwarded calls f with each packet that was taken since, and the interface it came in on, "" if that is gone. It does not wait.
func (p *Paths) TakeForwarded(f func(b []byte, link string)) {
	if p.port == nil {
		return
	}
	_ = p.port.raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), p.port.b[:], unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			messages, _ := syscall.ParseNetlinkMessage(p.port.b[:n])
			for _, m := range messages {
				attrs := m.Data[min(4, len(m.Data)):]
				link, _ := unix.NewIfreq("")
				if index := attribute(attrs, 4); len(index) == 4 { // NFULA_IFINDEX_INDEV
					link.SetUint32(binary.BigEndian.Uint32(index))
					_ = unix.IoctlIfreq(int(fd), unix.SIOCGIFNAME, link)
				}
				f(attribute(attrs, 9), link.Name()) // NFULA_PAYLOAD
			}
		}
	})
}
