package tunnel

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

const (
	// maxHalves is how many packets may lack their other half, per path.
	maxHalves = 64
	// halfLife is how long one waits, nanoseconds.
	halfLife = int64(1e9)
)

// DatagramSink takes the datagrams of one path of one peer. Its methods are called
// one after the other.
type DatagramSink struct {
	t      *Tunnel
	id     PeerID
	p      *peer
	out    coalescer
	got    bool // since the last Flush
	halves *[maxHalves]half
	whole  []byte // of two halves
}

// half waits for the other one.
type half struct {
	id   uint16
	kind byte // 0: empty
	at   int64
	b    []byte
}

// Datagrams returns a sink for one path of a peer, which need not have a route yet.
func (t *Tunnel) Datagrams(id PeerID) *DatagramSink {
	d := &DatagramSink{t: t, id: id, p: t.peer(id)}
	d.out.join = t.cfg.Device.UDPSegments()
	return d
}

// Datagram takes one datagram, which it may change but does not keep. What was
// taken is in the device after Flush.
func (d *DatagramSink) Datagram(b []byte) {
	if d.p == nil {
		if d.p = d.t.peer(d.id); d.p == nil {
			d.t.lost.drop(DropSourceNotPeer)
			return
		}
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

// half keeps one half of a packet, or delivers the packet when it is the other one.
func (d *DatagramSink) half(kind byte, id uint16, b []byte) {
	if d.halves == nil {
		d.halves = new([maxHalves]half)
	}
	const which = kindFirst | kindSecond
	now := d.t.now()
	h := &d.halves[id%maxHalves]
	if h.kind != 0 && h.id == id && h.kind^kind == which && now-h.at < halfLife && len(h.b)+len(b) <= virtio.MaxPacket {
		first, second := h.b, b
		if kind&kindFirst != 0 {
			first, second = b, h.b
		}
		d.whole = append(append(d.whole[:0], first...), second...)
		d.deliver(d.whole, kind&kindPartial != 0)
		h.kind, h.b = 0, h.b[:0]
		return
	}
	if h.kind != 0 {
		d.p.counters.drop(DropHalf)
	}
	h.id, h.kind, h.at = id, kind, now
	h.b = append(h.b[:0], b...)
}

// deliver checks one packet as the receiver of frames does.
func (d *DatagramSink) deliver(ip []byte, partial bool) {
	var h inet.Header
	var r Reason
	if err := h.Parse(ip, d.t.seed); err != nil {
		r = reasonOf(err)
	} else if _, ok := h.ChecksumOffset(); partial && !ok {
		r = DropBadOffload
	}
	if r == 0 {
		r = d.t.table.Load().admitReceive(d.p, &h)
		if r == DropSourceNotPeer { // perhaps it left and came back
			if p := d.t.peer(d.id); p != nil && p != d.p {
				d.p = p
				r = d.t.table.Load().admitReceive(p, &h)
			}
		}
	}
	if r != 0 {
		d.p.refuse(r)
		return
	}
	d.out.add(d.t.pools, &h, ip, partial, d.write)
}

// write hands the device what was joined.
func (d *DatagramSink) write() {
	b, count := d.out.frame(), d.out.count
	if b == nil {
		return
	}
	n := len(b) - virtio.HeaderLen + (count-1)*d.out.headers() // of the packets as they came
	if err := d.t.cfg.Device.Write(b); err != nil {
		d.p.counters.drop(DropDevice)
		return
	}
	d.p.counters.rxPackets.Add(uint64(count))
	d.p.counters.rxBytes.Add(uint64(n))
}

// Flush hands the device what was taken.
func (d *DatagramSink) Flush() {
	d.write()
	d.out.release(d.t.pools)
	if d.got && d.p != nil {
		d.p.used(d.t.now())
	}
	d.got = false
}

// Close frees what waits for its other half.
func (d *DatagramSink) Close() {
	if d.halves != nil && d.p != nil {
		for i := range d.halves {
			if d.halves[i].kind != 0 {
				d.p.counters.drop(DropHalf)
			}
		}
	}
	d.halves = nil
	d.out.n = 0
	d.out.release(d.t.pools)
}
