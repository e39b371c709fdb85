package nat64

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv6"
)

const (
	// raHeader is the length of a router advertisement before its options (RFC 4861, section 4.2), and optionPREF64 the one
	// with a NAT64 prefix (RFC 8781).
	raHeader     = 16
	optionPREF64 = 38
	// mostOptions bounds the prefixes of one advertisement, and raPause is the pause after each: more are dropped.
	mostOptions = 4
	raPause     = 20 * time.Millisecond
	// raBuffer is what the kernel keeps meanwhile, in bytes.
	raBuffer = 16 << 10
	// hopLimit proves that a packet comes from this link.
	hopLimit = 255
	// maxRTR is how often routers are solicited, each rtrInterval (RFC 4861, section 10: MAX_RTR_SOLICITATIONS).
	maxRTR      = 3
	rtrInterval = time.Second
)

// byRouter returns the prefixes in a router advertisement, an ICMPv6 message. What has no lifetime is gone.
func byRouter(b []byte) (out, gone []netip.Prefix) {
	if len(b) < raHeader || ipv6.ICMPType(b[0]) != ipv6.ICMPTypeRouterAdvertisement || b[1] != 0 {
		return nil, nil
	}
	for b = b[raHeader:]; len(b) >= 8 && len(out)+len(gone) < mostOptions; {
		n := 8 * int(b[1])
		if n == 0 || n > len(b) {
			return out, gone
		}
		if o := b[:n]; o[0] == optionPREF64 && n == 16 {
			scaled := binary.BigEndian.Uint16(o[2:])
			if code := int(scaled & 7); code < len(lengths) {
				var a [16]byte
				copy(a[:12], o[4:])
				p := netip.PrefixFrom(netip.AddrFrom16(a), lengths[code]).Masked()
				if scaled>>3 > 0 {
					out = append(out, p)
				} else {
					gone = append(gone, p)
				}
			}
		}
		b = b[n:]
	}
	return out, gone
}

// solicit calls found with the prefixes that routers on a link advertise, and gone with those they withdraw, until ctx ends. The socket needs CAP_NET_RAW.
func solicit(ctx context.Context, link *net.Interface, found, gone func(netip.Prefix)) error {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "ip6:ipv6-icmp", "::")
	if err != nil {
		return fmt.Errorf("open a socket for router advertisements: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	p := ipv6.NewPacketConn(c)
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeRouterAdvertisement)
	err = p.SetICMPFilter(&only)
	if err == nil {
		err = p.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true)
	}
	if err != nil {
		return fmt.Errorf("receive router advertisements: %w", err)
	}
	if r, ok := c.(interface{ SetReadBuffer(bytes int) error }); ok {
		_ = r.SetReadBuffer(raBuffer)
	}
	b := make([]byte, 1500)
	for sent, next := 0, time.Now(); ctx.Err() == nil; {
		if now := time.Now(); sent < maxRTR && !now.Before(next) {
			sent, next = sent+1, now.Add(rtrInterval)
			_, _ = p.WriteTo([]byte{byte(ipv6.ICMPTypeRouterSolicitation), 7: 0}, // the kernel adds the checksum
				&ipv6.ControlMessage{HopLimit: hopLimit, IfIndex: link.Index}, &net.IPAddr{IP: net.IPv6linklocalallrouters, Zone: link.Name})
		}
		until := time.Time{}
		if sent < maxRTR {
			until = next
		}
		_ = p.SetReadDeadline(until)
		n, cm, src, err := p.ReadFrom(b)
		if err != nil {
			continue // time to solicit, or ctx has ended
		}
		from, ok := src.(*net.IPAddr)
		if ok && cm != nil && cm.HopLimit == hopLimit && cm.IfIndex == link.Index && from.IP.IsLinkLocalUnicast() {
			there, withdrawn := byRouter(b[:n])
			for _, prefix := range there {
				found(prefix)
			}
			for _, prefix := range withdrawn {
				gone(prefix)
			}
		}
		select {
		case <-time.After(raPause):
		case <-ctx.Done():
		}
	}
	return nil
}
