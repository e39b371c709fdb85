package acks

import (
	"encoding/binary"
	"slices"
	"testing"

	"edgemesh/tunnel/inet"
)

// saying is an ACK's TCP header with these options, as hear reads it.
func saying(t *testing.T, ack uint32, options []byte) said {
	t.Helper()
	for len(options)%4 != 0 {
		options = append(options, optionEnd)
	}
	tcp := make([]byte, 20, 60)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[13] = inet.ACK
	s, ok := hear(append(tcp, options...), 20+len(options))
	if !ok {
		t.Fatalf("options %v: no acknowledgement", options)
	}
	return s
}

// blocks is a SACK option with blocks from begin to end.
func blocks(of ...uint32) []byte {
	b := []byte{optionNone, optionNone, optionSACK, byte(2 + 4*len(of))}
	for _, n := range of {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// An ACK replaces one before it if it says all that that did.
func TestWhatIsSaidAgain(t *testing.T) {
	times := []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	ack := func(n uint32, options ...[]byte) said { return saying(t, n, slices.Concat(options...)) }
	for name, c := range map[string]struct {
		before, then said
		covers, news bool
	}{
		"more":                   {ack(10, times), ack(20, times), true, true},
		"more, around zero":      {ack(1<<32 - 10), ack(10), true, true},
		"the same":               {ack(10), ack(10), false, false},
		"older":                  {ack(20), ack(10), false, false},
		"older, with blocks":     {ack(20), ack(10, blocks(30, 40)), false, true},
		"a first block":          {ack(10), ack(10, times, blocks(30, 40)), true, true},
		"a longer block":         {ack(10, blocks(30, 40)), ack(10, blocks(30, 50)), true, true},
		"a shorter one":          {ack(10, blocks(30, 40)), ack(10, blocks(32, 50)), false, true},
		"another one":            {ack(10, blocks(30, 40)), ack(10, blocks(60, 70, 30, 40)), true, true},
		"another one alone":      {ack(10, blocks(30, 40)), ack(10, blocks(60, 70)), false, true},
		"the gap is filled":      {ack(10, times, blocks(30, 40, 50, 60)), ack(60), true, true},
		"one of two":             {ack(10, blocks(30, 40, 50, 60)), ack(40, blocks(50, 60)), true, true},
		"and the other one not":  {ack(10, blocks(30, 40, 50, 60)), ack(40), false, true},
		"what arrived twice":     {ack(10, blocks(5, 10)), ack(20), false, true},
		"twice, above the ACK":   {ack(10, blocks(32, 34, 30, 40)), ack(10, blocks(30, 50)), false, true},
		"other options":          {ack(10, []byte{30, 4, 0, 0}), ack(20), false, true},
		"then other options":     {ack(10), ack(20, []byte{30, 4, 0, 0}), false, false},
		"options without an end": {ack(10), ack(20, []byte{5, 200, 0, 0}), false, false},
		"an option of no length": {ack(10), ack(20, []byte{5, 0, 0, 0}), false, false},
	} {
		if covers, news := c.then.covers(&c.before), c.then.news(&c.before); covers != c.covers || news != c.news {
			t.Errorf("%s: covers %v, news %v; want %v, %v", name, covers, news, c.covers, c.news)
		}
	}
	accurate := make([]byte, 20) // AccECN's flag
	accurate[12], accurate[13] = 5<<4|1, inet.ACK
	for name, b := range map[string][]byte{"data": make([]byte, 21), "no ACK": make([]byte, 20), "ECN": accurate} {
		if _, ok := hear(b, 20); ok {
			t.Errorf("%s is heard", name)
		}
	}
}

// Whatever the options are, hear reads them and no further.
func FuzzHear(f *testing.F) {
	f.Add(blocks(1, 2, 3, 4))
	f.Add([]byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 5, 10})
	f.Add([]byte{5, 40, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, options []byte) {
		tcp := make([]byte, 20, 20+len(options))
		tcp[13] = inet.ACK
		s, ok := hear(append(tcp, options...), 20+len(options))
		if !ok || s.n < 0 || s.n > len(s.blocks) {
			t.Errorf("%v: %v, %d blocks", options, ok, s.n)
		}
		before := said{ack: s.ack - 1, blocks: [4]block{{s.ack + 10, s.ack + 20}}, n: 1}
		if s.covers(&before) && (!s.news(&before) || !s.has(before.blocks[0])) {
			t.Errorf("%v covers a block that it does not report", options)
		}
	})
}
