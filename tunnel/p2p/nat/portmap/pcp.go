package portmap

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// PCP's MAP request and response (RFC 6887 sections 7 and 11.1) are 60 bytes each:
//
//	request:  version 2, opcode 1, 0 0, lifetime (4), client address (16)
//	response: version 2, opcode 129, 0, result, lifetime (4), epoch (4), 0 (12)
//	both:     nonce (12), protocol, 0 0 0, internal port, external port, external address (16)
const (
	pcpPort     = 5351
	pcpVersion  = 2
	pcpMap      = 1
	pcpResponse = 0x80
	pcpLen      = 60
	pcpNonce    = 24 // offset of the part that both have
)

var errPCP = errors.New("malformed PCP answer")

// pcp speaks PCP with one router.
type pcp struct {
	g      Gateway
	nonces map[bool][12]byte // by UDP: whoever knows it may change the mapping
}

func newPCP(g Gateway) *pcp {
	p := &pcp{g: g, nonces: make(map[bool][12]byte)}
	for _, udp := range []bool{false, true} {
		var n [12]byte
		_, _ = rand.Read(n[:]) // never fails, see crypto/rand
		p.nonces[udp] = n
	}
	return p
}

func (p *pcp) String() string { return "PCP" }

func (p *pcp) add(ctx context.Context, udp bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error) {
	req := p.request(udp, internal, netip.AddrPortFrom(netip.IPv4Unspecified(), want), d)
	b, err := p.exchange(ctx, req)
	if err != nil {
		return netip.AddrPort{}, 0, err
	}
	return parsePCP(b, req)
}

func (p *pcp) remove(ctx context.Context, udp bool, internal uint16, external netip.AddrPort) error {
	_, err := p.exchange(ctx, p.request(udp, internal, external, 0))
	return err
}

func (p *pcp) request(udp bool, internal uint16, external netip.AddrPort, d time.Duration) []byte {
	b := make([]byte, pcpLen)
	b[0], b[1] = pcpVersion, pcpMap
	binary.BigEndian.PutUint32(b[4:], uint32(d/time.Second))
	local := p.g.Local.As16()
	copy(b[8:], local[:])
	nonce := p.nonces[udp]
	copy(b[pcpNonce:], nonce[:])
	b[36] = 6 // TCP, RFC 6887 names protocols by IANA's numbers
	if udp {
		b[36] = 17
	}
	binary.BigEndian.PutUint16(b[40:], internal)
	binary.BigEndian.PutUint16(b[42:], external.Port())
	ip := external.Addr().As16()
	copy(b[44:], ip[:])
	return b
}

// parsePCP reads the answer to req.
func parsePCP(b, req []byte) (netip.AddrPort, time.Duration, error) {
	switch {
	case len(b) > 0 && b[0] != pcpVersion: // NAT-PMP's, which is version 0
		return netip.AddrPort{}, 0, errNotThere
	case len(b) < pcpLen || b[1] != pcpMap|pcpResponse:
		return netip.AddrPort{}, 0, errPCP
	case b[3] != 0:
		return netip.AddrPort{}, 0, fmt.Errorf("refused: %s", pcpResult(b[3]))
	case !bytes.Equal(b[pcpNonce:42], req[pcpNonce:42]):
		return netip.AddrPort{}, 0, fmt.Errorf("%w: of another request", errPCP)
	}
	ip, _ := netip.AddrFromSlice(b[44:60])
	external := netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[42:]))
	if external.Port() == 0 || !external.Addr().IsValid() {
		return netip.AddrPort{}, 0, fmt.Errorf("%w: no port", errPCP)
	}
	return external, time.Duration(binary.BigEndian.Uint32(b[4:])) * time.Second, nil
}

// pcpResult names the results of RFC 6887 section 7.4 that a router is likely to give.
func pcpResult(code byte) string {
	switch code {
	case 1:
		return "unsupported version"
	case 2:
		return "not authorized"
	case 4:
		return "unsupported operation"
	case 7:
		return "network failure"
	case 8:
		return "no resources"
	case 11:
		return "cannot provide external address"
	case 12:
		return "address mismatch"
	}
	return fmt.Sprintf("result %d", code)
}

// exchange sends b and returns the router's answer.
func (p *pcp) exchange(ctx context.Context, b []byte) ([]byte, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(p.g.Router, pcpPort).String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 1100) // the longest PCP message
	for _, wait := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond} {
		if _, err := c.Write(b); err != nil {
			return nil, errNotThere // refused, as ICMP said
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		if ctx.Err() != nil {
			break
		}
		if n, err := c.Read(buf); err == nil {
			return buf[:n], nil
		}
	}
	return nil, errNotThere
}
