package mdns

import (
	"errors"
	"fmt"
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

// message is what is of interest in an mDNS message.
type message struct {
	queried []string         // members that are looked for; "" stands for all
	answers map[string]ports // members that say where they listen
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

// answer says where this node listens. There is no address in it: its source is the address to dial.
func answer(id string, p ports) ([]byte, error) {
	n, err := name(id)
	if err != nil {
		return nil, fmt.Errorf("name of %s: %w", id, err)
	}
	all, err := dnsmessage.NewName(service)
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{
		Header: dnsmessage.Header{Response: true, Authoritative: true},
		Answers: []dnsmessage.Resource{
			{Header: dnsmessage.ResourceHeader{Name: all, Class: dnsmessage.ClassINET, TTL: ttl}, Body: &dnsmessage.PTRResource{PTR: n}},
			{Header: dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET | cacheFlush, TTL: ttl},
				Body: &dnsmessage.TXTResource{TXT: []string{"tcp=" + strconv.Itoa(int(p.tcp)), "udp=" + strconv.Itoa(int(p.udp))}}},
		},
	}
	return m.Pack()
}

// parse reads a message. What is not about members is left out. The error wraps errMessage.
func parse(b []byte) (message, error) {
	m := message{answers: map[string]ports{}}
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
				m.answers[id] = portsOf(txt.TXT)
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
		switch id, ours := memberOf(q.Name); {
		case ours && (q.Type == dnsmessage.TypeTXT || q.Type == dnsmessage.TypeALL):
			m.queried = append(m.queried, id)
		case q.Name.String() == service && (q.Type == dnsmessage.TypePTR || q.Type == dnsmessage.TypeALL):
			m.queried = append(m.queried, "")
		}
	}
	return nil
}

// portsOf reads the well-formed parts of a TXT record.
func portsOf(txt []string) (p ports) {
	for _, s := range txt {
		key, value, _ := strings.Cut(s, "=")
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
