package tunnel

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// DatagramSink takes the datagrams of one path of one peer. It is not safe for concurrent use.
type DatagramSink struct {
	t     *Tunnel
	id    PeerID
	p     *peer
	out   coalescer
	got   bool   // something, since the last Flush
	whole []byte // of two halves
}

// Datagrams returns a sink for one path of a peer, which may not have a route yet.
func (t *Tunnel) Datagrams(id PeerID) *DatagramSink {
	d := &DatagramSink{t: t, id: id, p: t.peer(id)}
	d.out.join = t.cfg.Device.UDPSegments()
	return d
}

// Datagram takes one datagram, which it may change but does not keep. Flush writes it to the device at the latest.
func (d *DatagramSink) Datagram(b []byte) {
	if d.peer() == nil {
		return
	}
	d.got = true
	if len(b) < kindLen || b[0]&^(kindPartial|kindFirst|kindSecond) != 0 {
		d.p.malformed(DropBadFrame)
		return
	}
	kind, b := b[0], b[kindLen:]
	partial := kind&kindPartial != 0
	switch kind &^ kindPartial {
	case 0:
		d.deliver(b, partial)
	case kindFirst, kindSecond:
		if len(b) <= halfLen-kindLen {
			d.p.malformed(DropBadFrame)
			return
		}
		d.half(kind, binary.BigEndian.Uint16(b), b[halfLen-kindLen:])
	default:
		d.p.malformed(DropBadFrame)
	}
}

// peer is that of the sink, nil if it has no route.
func (d *DatagramSink) peer() *peer {
	if d.p == nil {
		if d.p = d.t.peer(d.id); d.p == nil {
			d.t.lost.drop(DropSourceNotPeer)
		}
	}
	return d.p
}

// half keeps one half of a packet, or delivers the packet if the other half is here.
func (d *DatagramSink) half(kind byte, id uint16, b []byte) {
	other := d.p.halves.match(d, kind, id, b)
	if other == nil {
		return
	}
	first, second := other.frame(), b
	if kind&kindFirst != 0 {
		first, second = b, other.frame()
	}
	d.whole = append(append(d.whole[:0], first...), second...)
	d.t.pools.put(other)
	d.deliver(d.whole, kind&kindPartial != 0)
}

// deliver checks one packet as the receiver of frames does.
func (d *DatagramSink) deliver(ip []byte, partial bool) {
	var h inet.Header
	if r := d.check(&h, ip, partial); r != 0 {
		d.p.refuse(r)
		return
	}
	d.out.add(d.t.pools, &h, ip, partial, d.write)
}

func (d *DatagramSink) check(h *inet.Header, ip []byte, partial bool) Reason {
	if err := h.Parse(ip, d.t.seed); err != nil {
		return reasonOf(err)
	}
	if _, ok := h.ChecksumOffset(); partial && !ok {
		return DropBadOffload
	}
	r := d.t.table.Load().admitReceive(d.p, h)
	if r != DropSourceNotPeer {
		return r
	}
	p := d.t.peer(d.id)
	if p == nil || p == d.p {
		return r
	}
	d.p = p // it left and came back
	return d.t.table.Load().admitReceive(p, h)
}

// write gives the device what was joined.
func (d *DatagramSink) write() {
	b, count := d.out.frame(), d.out.count
	if b == nil {
		return
	}
	n := len(b) - virtio.HeaderLen + (count-1)*d.out.headers() // of the packets as they arrived
	if !d.p.thins(&d.out.h, b) && d.t.cfg.Device.Write(b) != nil {
		d.p.counters.drop(DropDevice)
		return
	}
	d.p.counters.rxPackets.Add(uint64(count))
	d.p.counters.rxBytes.Add(uint64(n))
}

// Flush gives the device everything taken.
func (d *DatagramSink) Flush() {
	d.write()
	d.out.release(d.t.pools)
	if d.got && d.p != nil {
		d.p.used(d.t.now())
	}
	d.got = false
}

// Close drops the halves that still wait.
func (d *DatagramSink) Close() {
	if d.p != nil {
		d.p.halves.forget(d)
	}
	d.out.n = 0
	d.out.release(d.t.pools)
}
