package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"edgemesh/tunnel/inet"
)

// radioSleeps is how long nothing must have been sent for a packet to wake a radio.
const radioSleeps = 5 * time.Second

// packet is one line of a capture.
type packet struct {
	at   time.Time
	size int // IP bytes
	kind string
}

// row is what a state has cost.
type row struct {
	state
	rate, error float64 // IP bytes a second
	wakes       float64 // of the radio, an hour
	kinds       map[string]float64
	sizes       map[string]map[int]int
}

// sum reads all captures.
func (b *bench) sum(began time.Time) ([]row, error) {
	var rows []row
	for _, s := range b.states {
		ps, err := b.read(b.capture(s.node))
		if err != nil {
			return nil, err
		}
		from, to := began.Add(s.from), began.Add(s.to)
		ps = slices.DeleteFunc(ps, func(p packet) bool {
			return p.at.Before(from) || p.at.After(to) || s.peers && strings.HasPrefix(p.kind, "relay")
		})
		rows = append(rows, add(s, ps, from, to))
	}
	return rows, nil
}

// add sums up one state. The error is that of the mean of its minutes.
func add(s state, ps []packet, from, to time.Time) row {
	r := row{state: s, kinds: map[string]float64{}, sizes: map[string]map[int]int{}}
	took := to.Sub(from).Seconds()
	minutes := make([]float64, max(1, int(took/60)))
	last := from.Add(-radioSleeps)
	for _, p := range ps {
		r.rate += float64(p.size) / took
		r.kinds[p.kind] += float64(p.size) / took
		if r.sizes[p.kind] == nil {
			r.sizes[p.kind] = map[int]int{}
		}
		r.sizes[p.kind][p.size]++
		if i := int(p.at.Sub(from).Minutes()); i < len(minutes) {
			minutes[i] += float64(p.size) / 60
		}
		if p.at.Sub(last) >= radioSleeps {
			r.wakes += 3600 / took
		}
		last = p.at
	}
	mean, square := 0.0, 0.0
	for _, x := range minutes {
		mean += x / float64(len(minutes))
	}
	for _, x := range minutes {
		square += (x - mean) * (x - mean)
	}
	if n := float64(len(minutes)); n > 1 {
		r.error = math.Sqrt(square / (n - 1) / n)
	}
	return r
}

// read reads a capture as tcpdump writes it (pcap, in this host's byte order).
func (b *bench) read(file string) (out []packet, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(text) < 24 || binary.NativeEndian.Uint32(text) != 0xa1b2c3d4 {
		return nil, errors.New(file + ": not a capture")
	}
	for text = text[24:]; len(text) >= 16; {
		head := text[:16]
		n := int(binary.NativeEndian.Uint32(head[8:]))
		if len(text) < 16+n {
			break // not written to the end yet
		}
		at := time.Unix(int64(binary.NativeEndian.Uint32(head)), int64(binary.NativeEndian.Uint32(head[4:]))*1000)
		size := int(binary.NativeEndian.Uint32(head[12:])) - 14 // Ethernet
		out = append(out, packet{at, size, b.kind(text[16+14 : 16+n])})
		text = text[16+n:]
	}
	return out, nil
}

// kind says what a packet is for, as far as one sees from outside.
func (b *bench) kind(ip []byte) string {
	if len(ip) < 24 || ip[0]>>4 != 4 {
		return "IPv6"
	}
	src, dst := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	who := "others"
	for _, n := range b.nodes {
		if n.Site != nil && (n.Site.WAN == src || n.Site.WAN == dst) && n.Site.WAN.IsValid() {
			who = "peers" // and itself, unless a relay follows
		}
	}
	for i, r := range b.l.Relays {
		if a := netip.MustParseAddr(r.Addr); a == src || a == dst {
			who = fmt.Sprintf("relay %d", i+1)
		}
	}
	head := int(ip[0]&15) * 4
	p := ip[head:]
	switch ip[9] {
	case inet.ProtoTCP:
		if len(p) < 14 {
			return who + " TCP"
		}
		data := int(binary.BigEndian.Uint16(ip[2:])) - head - int(p[12]>>4)*4
		switch {
		case p[13]&7 != 0:
			return who + " TCP open, close"
		case data == 0:
			return who + " TCP no data"
		}
		return who + " TCP data"
	case inet.ProtoUDP:
		if len(p) >= 12 && p[8]&0xc0 == 0 && binary.BigEndian.Uint16(p[10:]) < 200 && len(p) >= 16 && binary.BigEndian.Uint32(p[12:]) == 0x2112a442 {
			return who + " STUN"
		}
		return who + " UDP"
	}
	return fmt.Sprintf("%s protocol %d", who, ip[9])
}

// print writes the table, and with all who sent what.
func print(rows []row, all bool) {
	fmt.Printf("\n%-55s %10s %8s %10s %9s\n", "state (IP bytes, both directions)", "B/s", "±", "MB a month", "wakes/h")
	for _, r := range rows {
		rate, err, name := r.rate, r.error, r.name
		for _, o := range rows {
			if o.name == r.minus {
				rate, err, name = rate-o.rate, math.Hypot(err, o.error), name+", beside idle"
			}
		}
		fmt.Printf("%-55s %10.1f %8.1f %10.0f %9.0f\n", name, rate, err, rate*30*86400/1e6, r.wakes)
		for _, k := range slices.SortedFunc(maps.Keys(r.kinds), func(a, b string) int { return cmp.Compare(r.kinds[b], r.kinds[a]) }) {
			fmt.Printf("    %-51s %10.1f", k, r.kinds[k])
			if all {
				for _, size := range slices.Sorted(maps.Keys(r.sizes[k])) {
					fmt.Printf(" %d×%d", r.sizes[k][size], size)
				}
			}
			fmt.Println()
		}
	}
}
