// Package nameserver is a name server with faults, for tests.
package nameserver

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"edgemesh/internal/nat64"
)

// Fault is what is wrong with the answers for one type of record.
type Fault struct {
	Silent bool
	Late   time.Duration
	Code   dnsmessage.RCode // in place of an answer
}

// Server answers with the same addresses for every name in Names, or for every name.
type Server struct {
	Names   []string // without the last dot; none: every name is known
	Addrs   []netip.Addr
	A, AAAA Fault
	Loop    bool // every name is an alias of itself
	// DNS64 makes IPv6 addresses of IPv4 ones (RFC 6147), those of ipv4only.arpa among them; invalid: it does not.
	DNS64 netip.Prefix

	Queries atomic.Int64
}

// Serve answers on c until it is closed.
func (s *Server) Serve(c net.PacketConn) error {
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		s.Queries.Add(1)
		f := s.fault(m.Questions[0].Type)
		if f.Silent {
			continue
		}
		out, err := s.answer(m, f.Code)
		if err != nil {
			return err
		}
		time.AfterFunc(f.Late, func() { _, _ = c.WriteTo(out, from) })
	}
}

func (s *Server) fault(t dnsmessage.Type) Fault {
	if t == dnsmessage.TypeAAAA {
		return s.AAAA
	}
	return s.A
}

func (s *Server) answer(m dnsmessage.Message, code dnsmessage.RCode) ([]byte, error) {
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionDesired: true, RecursionAvailable: true, RCode: code}
	m.Answers, m.Authorities, m.Additionals = nil, nil, nil
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
	switch {
	case code != dnsmessage.RCodeSuccess:
	case s.Loop:
		head.Type = dnsmessage.TypeCNAME
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: q.Name}}}
	case !s.knows(name):
		m.RCode = dnsmessage.RCodeNameError
	default:
		for _, a := range s.addrs(name, q.Type) {
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
	}
	return m.Pack()
}

func (s *Server) addrs(name string, t dnsmessage.Type) []netip.Addr {
	all := s.Addrs
	if name == nat64.Name {
		all = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 0, 170}), netip.AddrFrom4([4]byte{192, 0, 0, 171})}
	}
	if t != dnsmessage.TypeAAAA || !s.DNS64.IsValid() || slices.ContainsFunc(all, netip.Addr.Is6) {
		return all
	}
	var out []netip.Addr
	for _, a := range all {
		out = append(out, nat64.Embed(s.DNS64, a))
	}
	return out
}

func (s *Server) knows(name string) bool {
	for _, known := range s.Names {
		if known == name {
			return true
		}
	}
	return len(s.Names) == 0
}
