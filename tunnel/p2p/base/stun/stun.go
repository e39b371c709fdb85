// Package stun queries a relay for the address a packet came from, and answers such queries: Binding of RFC 8489, with
// OTHER-ADDRESS of RFC 5780. From the answers a node learns what its NAT does; nothing else depends on them, so they need
// no authentication.
//
//	stun.go     queries and answers
//	message.go  how they are written
//	service.go  what a relay serves
//
// Queries and answers may share a UDP port with QUIC: their first two bits are zero (RFC 9443).
package stun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"edgemesh/internal/quota"
)

const (
	// maxMessage bounds what is read.
	maxMessage = 512
	// resend is how long an answer is awaited before the request is sent again.
	resend = 250 * time.Millisecond
	// eachAnswers a second go to one address, and allAnswers to all from one socket: a request's source may be forged, and the
	// answer then is a packet for another host, though not a longer one. A look at a NAT is some 20 queries, 16 of them together
	// where it maps ports at random: a hundred nodes behind one address may look at the same moment.
	eachAnswers = 2000
	allAnswers  = 20000
	// errorPause keeps a broken socket from spinning.
	errorPause = 50 * time.Millisecond
)

// Answer is what a server answers.
type Answer struct {
	Mapped netip.AddrPort // where the request came from
	Other  netip.AddrPort // another socket of the server; invalid if it has none
}

// Is reports whether b can be a request or an answer: it has STUN's magic cookie.
func Is(b []byte) bool { return is(b) }

// Serve answers requests on conn until ctx ends; then it closes conn. other, if valid, is sent as another address to
// query; an unspecified IP stands for the one that was queried.
func Serve(ctx context.Context, conn net.PacketConn, other netip.AddrPort) {
	closeOnce := sync.OnceFunc(func() { _ = conn.Close() }) // a shared one counts its users
	defer closeOnce()
	defer context.AfterFunc(ctx, closeOnce)()
	buf := make([]byte, maxMessage)
	share := quota.New(eachAnswers, allAnswers)
	for ctx.Err() == nil {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(errorPause):
			}
			continue
		}
		if reply, ok := answer(buf[:n], from, other); ok && share.Allow(site(from), time.Now()) {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// site is what a quota counts by: an IPv4 address, or an IPv6 network of 64 bits.
func site(from net.Addr) netip.Addr {
	u, _ := from.(*net.UDPAddr)
	a := u.AddrPort().Addr().Unmap()
	if p, err := a.Prefix(64); a.Is6() && err == nil {
		a = p.Addr()
	}
	return a
}

// answer makes the reply to one packet; ok is false if that is not a request.
func answer(p []byte, from net.Addr, other netip.AddrPort) (reply []byte, ok bool) {
	src, isUDP := from.(*net.UDPAddr)
	if !isUDP || len(p) < minRequest {
		return nil, false
	}
	m, ok := read(p)
	if !ok || m.kind != bindingRequest {
		return nil, false
	}
	a := src.AddrPort()
	out := add(start(bindingSuccess, m.id), attrXORMapped, xor(value(netip.AddrPortFrom(a.Addr().Unmap(), a.Port())), m.id))
	if other.IsValid() {
		if more := add(out, attrOther, value(other)); len(more) <= len(p) {
			out = more
		}
	}
	return finish(out), true
}

// Query queries server from conn, repeatedly until ctx ends. Anything else that arrives meanwhile is dropped. No other
// goroutine may use conn.
func Query(ctx context.Context, conn net.PacketConn, server netip.AddrPort) (Answer, error) {
	var id transactionID
	_, _ = rand.Read(id[:]) // never fails
	// PADDING (RFC 5780) up to minRequest; 4 bytes are its own header.
	request := finish(add(start(bindingRequest, id), attrPadding, make([]byte, minRequest-headLen-4)))
	buf := make([]byte, maxMessage)
	for ctx.Err() == nil {
		if _, err := conn.WriteTo(request, net.UDPAddrFromAddrPort(server)); err != nil {
			return Answer{}, fmt.Errorf("query STUN server %s: %w", server, err)
		}
		until := time.Now().Add(resend)
		if d, ok := ctx.Deadline(); ok && d.Before(until) {
			until = d
		}
		_ = conn.SetReadDeadline(until)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				break // time to query again, or an ICMP error that proves nothing
			}
			if a, ok := parse(buf[:n], id, server.Addr()); ok {
				return a, nil
			}
		}
	}
	return Answer{}, fmt.Errorf("query STUN server %s: %w", server, ctx.Err())
}

// parse reads the answer to the request with the given ID.
func parse(p []byte, id transactionID, server netip.Addr) (Answer, bool) {
	m, ok := read(p)
	if !ok || m.kind != bindingSuccess || m.id != id {
		return Answer{}, false
	}
	a := Answer{Mapped: m.address(attrXORMapped, attrXORFormer), Other: m.address(attrOther)}
	if a.Other.IsValid() && a.Other.Addr().IsUnspecified() {
		a.Other = netip.AddrPortFrom(server, a.Other.Port())
	}
	return a, a.Mapped.IsValid()
}
