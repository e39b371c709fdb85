package nft

import (
	"bytes"
	"encoding/binary"
	"net"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/verdict"
)

// known is a byte of a register, if it is known.
type known struct {
	value byte
	yes   bool
}

// subject is what a register's content is about.
type subject uint8

const (
	anything subject = iota
	place            // addresses, interfaces
	class            // protocols, ports
)

// machine runs one rule's expressions on one packet.
type machine struct {
	table     *reader
	packet    verdict.Packet
	registers [64]known // as the kernel has them: 4 of 16 bytes, or 16 of 4 bytes
	about     [64]subject
	match     verdict.Match
	does      verdict.Action
	matched   [class + 1]bool // by subject: something matched
	missed    [class + 1]bool // something did not
	guessed   bool
}

// ask implements verdict.Rule's.
func (t *reader) ask(exprs []expr.Any, p verdict.Packet) (verdict.Match, verdict.Action, bool) {
	m := &machine{table: t, packet: p, match: verdict.Yes}
	for _, e := range exprs {
		m.run(e)
	}
	meant := m.does.Kind == verdict.Accept && m.matched[place] && !m.missed[place] && !m.missed[anything] && (m.missed[class] || m.guessed)
	return m.match, m.does, meant
}

// at is where a register begins.
func at(register uint32) int {
	const firstSmall = 8 // NFT_REG32_00
	if register >= firstSmall {
		return int(register-firstSmall) * 4 % 64
	}
	return int(register-1) * 16 % 64
}

// set writes to a register.
func (m *machine) set(register uint32, about subject, content []known) {
	from := at(register)
	n := copy(m.registers[from:], content)
	for i := range n {
		m.about[from+i] = about
	}
}

// unknown is content of which nothing is known.
func unknown(size int) []known { return make([]known, size) }

func of(b ...byte) []known {
	out := make([]known, len(b))
	for i, x := range b {
		out[i] = known{x, true}
	}
	return out
}

// get reads a register; ok if all of it is known.
func (m *machine) get(register uint32, size int) (b []byte, about subject, ok bool) {
	from := at(register)
	ok = true
	for _, k := range m.registers[from:min(from+size, len(m.registers))] {
		b, ok = append(b, k.value), ok && k.yes
	}
	return b, m.about[from], ok && len(b) == size
}

// test notes the outcome of a comparison, and forgets the register: what is not translated might have written to it since.
func (m *machine) test(about subject, is, ok bool, register uint32, size int) {
	switch {
	case !ok:
		m.guess()
	case is:
		m.matched[about] = true
	default:
		m.missed[about], m.match = true, verdict.No
	}
	if register != 0 {
		m.set(register, anything, unknown(size))
	}
}

// guess notes that the rule asks for what is not known.
func (m *machine) guess() { m.guessed, m.match = true, min(m.match, verdict.Perhaps) }

// run takes one expression.
func (m *machine) run(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			about, content := m.meta(e.Key)
			m.set(e.Register, about, content)
		}
	case *expr.Payload:
		m.payload(e)
	case *expr.Ct:
		if !e.SourceRegister {
			m.set(e.Register, anything, m.ct(e.Key))
		}
	case *expr.Bitwise:
		m.bitwise(e)
	case *expr.Cmp:
		have, about, ok := m.get(e.Register, len(e.Data))
		is := compared(bytes.Compare(have, e.Data), e.Op)
		forget := e.Register
		if e.Op == expr.CmpOpGte || e.Op == expr.CmpOpLte { // the other end of an interval may follow
			forget = 0
		}
		m.test(about, is, ok, forget, len(e.Data))
	case *expr.Range:
		have, about, ok := m.get(e.Register, len(e.FromData))
		in := bytes.Compare(have, e.FromData) >= 0 && bytes.Compare(have, e.ToData) <= 0
		m.test(about, in == (e.Op == expr.CmpOpEq), ok, e.Register, len(e.FromData))
	case *expr.Lookup:
		m.lookup(e)
	case *expr.Verdict:
		m.does = actionOf(e)
	case *expr.Reject:
		m.does = verdict.Action{Kind: verdict.Drop}
	case *expr.Queue: // another program decides
		m.does = verdict.Action{Kind: verdict.Accept}
		m.guess()
	case *expr.Fib:
		m.set(e.Register, anything, unknown(16))
	case *expr.Numgen:
		m.set(e.Register, anything, unknown(4))
	case *expr.Immediate:
		m.set(e.Register, anything, of(e.Data...))
	case *expr.Counter, *expr.Log, *expr.Notrack, *expr.FlowOffload, *expr.NAT, *expr.Masq, *expr.Redir, *expr.Objref:
	default: // limits, xtables' matches, and what is not known here
		m.guess()
	}
}

func compared(c int, op expr.CmpOp) bool {
	switch op {
	case expr.CmpOpEq:
		return c == 0
	case expr.CmpOpNeq:
		return c != 0
	case expr.CmpOpLt:
		return c < 0
	case expr.CmpOpLte:
		return c <= 0
	case expr.CmpOpGt:
		return c > 0
	}
	return c >= 0
}

func (m *machine) meta(key expr.MetaKey) (subject, []known) {
	p := m.packet
	switch key {
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
		name := p.In
		if key == expr.MetaKeyOIFNAME {
			name = p.Out
		}
		if name == "" {
			return place, unknown(unix.IFNAMSIZ)
		}
		return place, of(append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)...)
	case expr.MetaKeyNFPROTO:
		if p.Src.Is4() {
			return anything, of(unix.NFPROTO_IPV4)
		}
		return anything, of(unix.NFPROTO_IPV6)
	case expr.MetaKeyPROTOCOL:
		if p.Src.Is4() {
			return anything, of(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)...)
		}
		return anything, of(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6)...)
	case expr.MetaKeyL4PROTO:
		return class, of(p.Proto)
	case expr.MetaKeyIIF, expr.MetaKeyOIF:
		name := p.In
		if key == expr.MetaKeyOIF {
			name = p.Out
		}
		if link, err := net.InterfaceByName(name); err == nil {
			return place, of(binary.NativeEndian.AppendUint32(nil, uint32(link.Index))...)
		}
		return place, unknown(4)
	}
	return anything, unknown(16)
}

// ct says what connection tracking knows of a packet that opens a connection.
func (m *machine) ct(key expr.CtKey) []known {
	switch {
	case m.packet.Raw:
	case key == expr.CtKeySTATE:
		return of(binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)...)
	case key == expr.CtKeySTATUS: // not translated, not confirmed
		return of(0, 0, 0, 0)
	case key == expr.CtKeyDIRECTION:
		return of(0)
	}
	return unknown(16)
}

func (m *machine) payload(e *expr.Payload) {
	if e.OperationType != expr.PayloadLoad {
		return
	}
	network, transport := headers(m.packet)
	content, about := unknown(int(e.Len)), class
	from := network
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		if _, size := addressAt(e); size > 0 {
			about = place
		}
	case expr.PayloadBaseTransportHeader:
		from = transport
	default:
		from, about = nil, anything
	}
	if int(e.Offset) < len(from) {
		copy(content, from[e.Offset:])
	}
	m.set(e.DestRegister, about, content)
}

func (m *machine) bitwise(e *expr.Bitwise) {
	size := int(e.Len)
	from := at(e.SourceRegister)
	content := unknown(size)
	if len(e.Mask) == size && len(e.Xor) == size && from+size <= len(m.registers) { // else a shift
		for i := range content {
			k := m.registers[from+i]
			content[i] = known{k.value&e.Mask[i] ^ e.Xor[i], k.yes || e.Mask[i] == 0}
		}
	}
	m.set(e.DestRegister, m.about[from], content)
}

func (m *machine) lookup(e *expr.Lookup) {
	s := m.table.load(e.SetName)
	if s == nil {
		m.guess()
		return
	}
	size := 0
	if len(s.elements) > 0 {
		size = len(s.elements[0].Key)
	}
	key, about, ok := m.get(e.SourceRegister, size)
	element, found := s.find(key)
	if len(s.elements) == 0 { // whatever the key is
		found, ok = false, true
	}
	m.test(about, found != e.Invert, ok, 0, 0)
	if !e.IsDestRegSet {
		return
	}
	const verdictRegister = 0
	switch {
	case e.DestRegister != verdictRegister:
		m.set(e.DestRegister, anything, unknown(16))
	case ok && found:
		if v := verdictOf(element); v != nil {
			m.does = actionOf(v)
		}
	case !ok: // it may accept
		m.does = verdict.Action{Kind: verdict.Accept}
	}
}

func actionOf(v *expr.Verdict) verdict.Action {
	switch v.Kind {
	case expr.VerdictAccept:
		return verdict.Action{Kind: verdict.Accept}
	case expr.VerdictDrop, expr.VerdictStolen:
		return verdict.Action{Kind: verdict.Drop}
	case expr.VerdictReturn:
		return verdict.Action{Kind: verdict.Return}
	case expr.VerdictJump:
		return verdict.Action{Kind: verdict.Jump, Chain: v.Chain}
	case expr.VerdictGoto:
		return verdict.Action{Kind: verdict.Goto, Chain: v.Chain}
	}
	return verdict.Action{}
}
