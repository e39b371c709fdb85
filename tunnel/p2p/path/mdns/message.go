package mdns

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// service is the name under which members are found.
	service = "_edgemesh._udp.local."
	// maxMessage is the longest message, in bytes (RFC 6762 section 17), and maxRecords how many questions or records of
	// one are read.
	maxMessage = 9000
	maxRecords = 32
	// ttl is how long others may remember an answer, in seconds (RFC 6762 section 10: 120 for records about a host).
	ttl = 120
	// cacheFlush marks a record as the only one of its name (RFC 6762 section 10.2); as a question's bit it requests a
	// unicast answer.
	cacheFlush = 1 << 15
)

var errMessage = errors.New("malformed mDNS message")

// ports are where a member listens; 0 where it does not.
type ports struct{ tcp, udp uint16 }

// claim is what a member says of itself.
type claim struct {
	ports
	sig []byte // by its key, of said; nil in former versions
}

// message is what is of interest in an mDNS message.
type message struct {
	queried []string         // members that are looked for
	answers map[string]claim // members that say where they listen
}

// said is what a member signs: who it is, and where it listens.
func said(id string, from netip.Addr, p ports) []byte {
	return fmt.Appendf(nil, "edgemesh mdns 1\x00%s\x00%s\x00%d\x00%d", id, from, p.tcp, p.udp)
}

// name is the DNS name of a member.
func name(id string) (dnsmessage.Name, error) { return dnsmessage.NewName(id + "." + service) }

// memberOf is the reverse of name; ok is false for other names.
func memberOf(n dnsmessage.Name) (id string, ok bool) {
	id, ok = strings.CutSuffix(n.String(), "."+service)
	return id, ok && id != "" && !strings.Contains(id, ".")
}

// query makes the query for a member.
func query(id string) ([]byte, error) {
	n, err := name(id)
	if err != nil {
		return nil, fmt.Errorf("name of %s: %w", id, err)
	}
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: n, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}}}
	return m.Pack()
}

// answer says where this node listens. There is no address in it: its source is the address to dial, and is signed with
// the ports, where there is a signature.
func answer(id string, c claim) ([]byte, error) {
	n, err := name(id)
	if err != nil {
		return nil, fmt.Errorf("name of %s: %w", id, err)
	}
	all, err := dnsmessage.NewName(service)
	if err != nil {
		return nil, err
	}
	txt := []string{"tcp=" + strconv.Itoa(int(c.tcp)), "udp=" + strconv.Itoa(int(c.udp))}
	if c.sig != nil {
		txt = append(txt, "sig="+base64.RawStdEncoding.EncodeToString(c.sig))
	}
	m := dnsmessage.Message{
		Header: dnsmessage.Header{Response: true, Authoritative: true},
		Answers: []dnsmessage.Resource{
			{Header: dnsmessage.ResourceHeader{Name: all, Class: dnsmessage.ClassINET, TTL: ttl}, Body: &dnsmessage.PTRResource{PTR: n}},
			{Header: dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET | cacheFlush, TTL: ttl},
				Body: &dnsmessage.TXTResource{TXT: txt}},
		},
	}
	return m.Pack()
}

// parse reads a message. What is not about members is left out. The error wraps errMessage.
func parse(b []byte) (message, error) {
	m := message{answers: map[string]claim{}}
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return m, fmt.Errorf("%w: %w", errMessage, err)
	}
	if h.RCode != 0 || h.OpCode != 0 { // RFC 6762 sections 18.3 and 18.11: ignored
		return m, nil
	}
	if !h.Response {
		return m, m.questions(&p)
	}
	if err := p.SkipAllQuestions(); err != nil {
		return m, fmt.Errorf("%w: %w", errMessage, err)
	}
	for range maxRecords {
		rh, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return m, nil
		}
		if err != nil {
			return m, fmt.Errorf("%w: %w", errMessage, err)
		}
		id, ours := memberOf(rh.Name)
		if !ours || rh.Type != dnsmessage.TypeTXT || rh.TTL == 0 {
			err = p.SkipAnswer()
		} else {
			var txt dnsmessage.TXTResource
			if txt, err = p.TXTResource(); err == nil {
				m.answers[id] = claimOf(txt.TXT)
			}
		}
		if err != nil {
			return m, fmt.Errorf("%w: %w", errMessage, err)
		}
	}
	return m, nil
}

func (m *message) questions(p *dnsmessage.Parser) error {
	for range maxRecords {
		q, err := p.Question()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errMessage, err)
		}
		if id, ours := memberOf(q.Name); ours && (q.Type == dnsmessage.TypeTXT || q.Type == dnsmessage.TypeALL) {
			m.queried = append(m.queried, id)
		}
	}
	return nil
}

// claimOf reads the well-formed parts of a TXT record.
func claimOf(txt []string) (p claim) {
	for _, s := range txt {
		key, value, _ := strings.Cut(s, "=")
		if key == "sig" {
			if sig, err := base64.RawStdEncoding.DecodeString(value); err == nil {
				p.sig = sig
			}
			continue
		}
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			continue
		}
		switch key {
		case "tcp":
			p.tcp = uint16(n)
		case "udp":
			p.udp = uint16(n)
		}
	}
	return p
}
