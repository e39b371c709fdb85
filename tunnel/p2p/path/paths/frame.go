package paths

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	ma "github.com/multiformats/go-multiaddr"
)

// probe frames, each side on a stream of its own:
//
//	 0        2      3      4        8               16
//	+--------+------+------+--------+---------------+------------------+
//	| length | type | flag | seq    | token         | observed address |
//	+--------+------+------+--------+---------------+------------------+
//
// All numbers are big-endian; length counts what follows it, at most
// maxProbe bytes. The observed address is a binary multiaddr: where the sender
// sees the receiver (empty on relayed paths). An answer repeats seq. Token names
// the connection in the sender's own books.
const (
	probeRequest = 1 // flag unused
	probeAnswer  = 2 // flag 1: the address observed in the request is mine, or mapped for me
	probeDrop    = 3 // token: the receiver's name of another connection, found dead
	probeNudge   = 4 // the sender's addresses have changed: direct paths are worth a new attempt

	probeHeader = 14 // type to token
	maxProbe    = probeHeader + 256
)

var errBadProbe = errors.New("malformed probe")

// probeFrame is one frame of the probe protocol.
type probeFrame struct {
	typ      byte
	owned    bool
	seq      uint32
	token    uint64
	observed ma.Multiaddr // nil if empty
}

func (f probeFrame) append(b []byte) []byte {
	var obs []byte
	if f.observed != nil {
		obs = f.observed.Bytes()
	}
	if len(obs) > maxProbe-probeHeader {
		obs = nil
	}
	b = binary.BigEndian.AppendUint16(b, uint16(probeHeader+len(obs)))
	flag := byte(0)
	if f.owned {
		flag = 1
	}
	b = append(b, f.typ, flag)
	b = binary.BigEndian.AppendUint32(b, f.seq)
	b = binary.BigEndian.AppendUint64(b, f.token)
	return append(b, obs...)
}

// readProbe reads one frame. It returns errBadProbe, wrapped, for anything that
// is not exactly one.
func readProbe(r io.Reader) (probeFrame, error) {
	var buf [2 + maxProbe]byte
	if _, err := io.ReadFull(r, buf[:2]); err != nil {
		return probeFrame{}, err
	}
	n := int(binary.BigEndian.Uint16(buf[:]))
	if n < probeHeader || n > maxProbe {
		return probeFrame{}, fmt.Errorf("%w: length %d", errBadProbe, n)
	}
	b := buf[2 : 2+n]
	if _, err := io.ReadFull(r, b); err != nil {
		return probeFrame{}, err
	}
	f := probeFrame{typ: b[0], owned: b[1] == 1, seq: binary.BigEndian.Uint32(b[2:]), token: binary.BigEndian.Uint64(b[6:])}
	if f.typ < probeRequest || f.typ > probeNudge || b[1] > 1 {
		return probeFrame{}, fmt.Errorf("%w: type %d, flag %d", errBadProbe, b[0], b[1])
	}
	if obs := b[probeHeader:]; len(obs) > 0 {
		a, err := ma.NewMultiaddrBytes(obs)
		if err != nil {
			return probeFrame{}, fmt.Errorf("%w: %w", errBadProbe, err)
		}
		f.observed = a
	}
	return f, nil
}
