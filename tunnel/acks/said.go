package acks

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
)

// said is what an acknowledgement without data says.
type said struct {
	ack    uint32
	blocks [4]block // that arrived behind something missing (SACK, RFC 2018)
	n      int      // of them
	other  bool     // options there are, which are not looked at
}

// block is a range of sequence numbers.
type block struct{ begin, end uint32 }

// Kinds of TCP options.
const (
	optionEnd, optionNone, optionSACK = 0, 1, 5
	// usualBegin is how options usually begin: two times nothing, timestamps and their length (RFC 7323 appendix A).
	usualBegin, usualLen = 0x0101080a, 12
)

// hear parses a TCP packet whose header is so long. It reports false if that is not only an acknowledgement.
func hear(tcp []byte, hdrLen int) (s said, ok bool) {
	if len(tcp) != hdrLen || tcp[13] != inet.ACK || tcp[12]&0x0f != 0 {
		return said{}, false
	}
	s.ack = binary.BigEndian.Uint32(tcp[8:])
	options := tcp[20:]
	if len(options) >= usualLen && binary.BigEndian.Uint32(options) == usualBegin {
		options = options[usualLen:]
	}
	for len(options) > 0 && options[0] != optionEnd {
		if options[0] == optionNone {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) || options[0] != optionSACK {
			s.other = true
			return s, true
		}
		for b := options[2:options[1]]; len(b) >= 8 && s.n < len(s.blocks); b = b[8:] {
			s.blocks[s.n] = block{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
			s.n++
		}
		options = options[options[1]:]
	}
	return s, true
}

// plain reports whether it says only how much has arrived, and when.
func (s *said) plain() bool { return s.n == 0 && !s.other }

// news reports whether it says that more arrived than before. One that does not may be counted, or opens a window.
func (s *said) news(before *said) bool {
	return !s.other && (int32(s.ack-before.ack) > 0 || s.n > 0)
}

// covers reports whether all that was said before is said again.
func (s *said) covers(before *said) bool {
	if before.other || before.twice() || !s.news(before) || int32(s.ack-before.ack) < 0 {
		return false
	}
	for _, b := range before.blocks[:before.n] {
		if !s.has(b) {
			return false
		}
	}
	return true
}

// twice reports whether it says that something arrived twice (RFC 2883): the first block is below the ACK, or in the second.
func (s *said) twice() bool {
	return s.n > 0 && int32(s.blocks[0].end-s.ack) <= 0 || s.n > 1 && s.blocks[1].holds(s.blocks[0])
}

func (b block) holds(o block) bool { return int32(o.begin-b.begin) >= 0 && int32(b.end-o.end) >= 0 }

// has reports whether it says that a block arrived.
func (s *said) has(b block) bool {
	if int32(s.ack-b.end) >= 0 {
		return true
	}
	for _, o := range s.blocks[:s.n] {
		if o.holds(b) {
			return true
		}
	}
	return false
}
