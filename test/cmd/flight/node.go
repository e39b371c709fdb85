package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"edgemesh/tunnel/acks"
	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/pull"
	"edgemesh/tunnel/tun"
	"edgemesh/tunnel/virtio"
)

const (
	overhead     = sealed.Overhead + 8 + 20 + 14 // UDP, IPv4, Ethernet
	room         = 1500 - 28 - sealed.Overhead
	trainPackets = 44 // in 64 KiB
	lengthBytes  = 4
	frameBytes   = 2048
)

// node is one end.
type node struct {
	dev    tun.Device
	conn   *net.UDPConn
	to     netip.AddrPort
	start  time.Time
	woken  chan struct{}
	sealer *sealed.Sealer // the sending goroutine's
	opener *sealed.Opener // the receiving one's
	acks   *acks.Thinner
	rows   acks.Rows   // the reading goroutine's
	clean  atomic.Bool // the path loses nothing

	mu                sync.Mutex
	path              *flight.Path
	number            uint64
	streams           queue
	datagrams, behind *packet // oldest and newest
	payload           []byte
	partial           [pull.Buckets][]byte
	spare             *packet
	peer              *flight.Peer
}

func (n *node) now() float64 { return time.Since(n.start).Seconds() }

func (n *node) wake() {
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// read queues what comes from the TUN.
func (n *node) read() error {
	buf := make([]byte, virtio.MaxFrame)
	for {
		k, err := n.dev.Read(buf)
		if err != nil {
			return err
		}
		var h inet.Header
		ip := buf[virtio.HeaderLen:k]
		if k > frameBytes-lengthBytes || h.Parse(ip, 1) != nil || h.Noise() {
			continue
		}
		bulk := k > room-lengthBytes
		if h.Proto == inet.ProtoTCP {
			now := int64(n.now() * 1e9)
			n.writeAck(n.acks.Sent(&h, ip, now))
			bulk = bulk || !n.rows.Continues(&h, ip, now, n.acks.RTT())
		}
		n.mu.Lock()
		p := n.spare
		if p == nil {
			p = &packet{b: make([]byte, 0, frameBytes), from: n}
		} else {
			n.spare = p.next
		}
		p.b = append(binary.BigEndian.AppendUint32(p.b[:0], uint32(k)), buf[:k]...)
		p.at, p.bucket, p.next = n.now(), int(h.Flow%pull.Buckets), nil
		switch {
		case bulk:
			n.streams.push(p)
		case n.datagrams == nil:
			n.datagrams, n.behind = p, p
		default:
			n.behind.next, n.behind = p, p
		}
		n.mu.Unlock()
		n.wake()
	}
}

// Waits, Stream and Datagram make it a flight.Source; n.mu is held.
func (n *node) Waits() (stream, datagram bool) { return n.streams.bytes > 0, n.datagrams != nil }

func (n *node) Stream(now float64) (pull.Frame, int) {
	rtt := n.path.Control().SRTT()
	target := min(max(0.6*rtt, 0.005), 0.1)
	if n.path.Control().Grows() {
		target = 60 // seconds: nobody is to slow down
	}
	p := n.streams.pop(now, target, min(max(2*rtt, 0.15), 1)) // as the tunnel's
	if p == nil {
		return nil, 0
	}
	return p, p.bucket
}

func (n *node) Datagram(now float64, room int) []byte {
	for n.datagrams != nil {
		p := n.datagrams
		if len(p.b)-lengthBytes > room {
			return nil
		}
		n.datagrams = p.next
		p.Done()
		if now-p.at < 1 {
			return p.b[lengthBytes:]
		}
	}
	return nil
}

// sink is the node as a flight.Sink; n.mu is held.
type sink struct{ *node }

// send sends what may leave.
func (n *node) send() {
	timer := time.NewTimer(time.Hour)
	train := make([]byte, 0, 1<<16)
	for {
		train = train[:0]
		each, count, wait := 0, 0, 0.0
		n.mu.Lock()
		for count < trainPackets {
			var b []byte
			if b, wait = n.path.Next(n.now(), n.number, n.payload[:0], room); len(b) == 0 {
				break
			}
			n.payload = b
			if each == 0 {
				each = len(b) + sealed.Overhead
			}
			var err error
			if train, err = n.sealer.Seal(train, b); err != nil {
				panic(err)
			}
			n.number++
			count++
			if len(b)+sealed.Overhead != each { // the last of a train may be shorter, and a longer one begins another
				if len(b)+sealed.Overhead > each {
					k := len(train) - len(b) - sealed.Overhead
					n.write(train[:k], each, count-1)
					train = train[:copy(train, train[k:])]
					each, count = len(train), 1
					continue
				}
				break
			}
		}
		n.mu.Unlock()
		if count > 0 {
			n.write(train, each, count)
			continue
		}
		timer.Reset(time.Duration(max(wait, 0.0001) * 1e9))
		select {
		case <-n.woken:
		case <-timer.C:
		}
	}
}

func (n *node) write(train []byte, each, count int) {
	var oob []byte
	if count > 1 {
		oob = make([]byte, unix.CmsgSpace(2))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
		h.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], uint16(each))
	}
	if _, _, err := n.conn.WriteMsgUDPAddrPort(train, oob, n.to); err != nil {
		fmt.Fprintln(os.Stderr, "write:", err)
	}
}

// receive takes what the peer sends.
func (n *node) receive() {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		k, o, _, _, err := n.conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			continue
		}
		size, age := k, 0.0
		if ms, err := unix.ParseSocketControlMessage(oob[:o]); err == nil {
			for _, m := range ms {
				switch {
				case m.Header.Level == unix.SOL_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4:
					size = int(binary.NativeEndian.Uint32(m.Data))
				case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16:
					at := time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
					age = min(max(time.Since(at).Seconds(), 0), 1)
				}
			}
		}
		n.mu.Lock()
		now := n.now()
		for b := buf[:k]; len(b) > 0; {
			one := b[:min(size, len(b))]
			b = b[len(one):]
			if !sealed.Is(one) {
				continue
			}
			number := binary.BigEndian.Uint64(one[4:])
			if payload, err := n.opener.Open(one); err == nil {
				n.path.Receive(number, payload, now-age, now)
			}
		}
		n.acks.SetRTT(time.Duration(n.path.Control().MinRTT() * 1e9))
		n.clean.Store(n.path.Control().Full() && n.path.Control().Loss() < 0.0005)
		n.mu.Unlock()
		n.wake()
	}
}

func (n *node) writeAck(h *acks.Held) {
	if h != nil {
		_ = n.dev.Write(h.Frame())
		h.Free()
	}
}

func (s sink) Restart(bucket int) { s.partial[bucket] = s.partial[bucket][:0] }

func (s sink) Stream(bucket int, b []byte) (begun int) {
	p := append(s.partial[bucket], b...)
	for len(p) >= lengthBytes {
		end := lengthBytes + int(binary.BigEndian.Uint32(p))
		if len(p) < end {
			break
		}
		_ = s.dev.Write(p[lengthBytes:end])
		p = p[end:]
	}
	s.partial[bucket] = append(s.partial[bucket][:0], p...)
	return len(p)
}

// Datagram holds a young flow's ACKs back, so that a repair does not end its slow start.
func (s sink) Datagram(b []byte) {
	if len(b) < virtio.HeaderLen+20 {
		return
	}
	var h inet.Header
	if h.Parse(b[virtio.HeaderLen:], 1) == nil && h.Proto == inet.ProtoTCP {
		release, held := s.acks.Received(&h, b, int64(s.now()*1e9))
		s.writeAck(release)
		if held {
			return
		}
	}
	_ = s.dev.Write(b)
}

// watch writes what the path does.
func (n *node) watch() {
	for range time.Tick(time.Second) {
		n.mu.Lock()
		c := n.path.Control()
		fmt.Fprintf(os.Stderr, "%.0f %v rate %.2f Mbit/s, window %.0f, in flight %.0f, srtt %.1f queue %.1f ms, loss %.3f, waits %d, dropped %d, %+v %v\n", n.now(), c.State(),
			8e-6*c.Rate(n.path.InFlight()), c.Window(), n.path.InFlight(), 1000*c.SRTT(), 1000*c.Queue(), c.Loss(), n.streams.bytes, n.streams.dropped, n.peer.Counters(), n.peer.Refused())
		n.mu.Unlock()
	}
}
