package capture

import (
	"bytes"
	"encoding/binary"
	"io"
	"time"
)

// The blocks of a pcapng file (draft-ietf-opsawg-pcapng), and what of their options is used.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrder      = 0x1a2b3c4d
	linkRaw        = 101 // packets begin with the IP header

	optEnd       = 0
	optComment   = 1
	optName      = 2 // of an interface
	optResolved  = 9 // of an interface: the unit of time
	optFlags     = 2 // of a packet
	nanoseconds  = 9 // 10^-9 s
	flagIncoming = 1
	flagOutgoing = 2
)

// Writer writes packets to a pcapng file, which tcpdump and Wireshark read. The file has one interface, because libpcap
// refuses several of raw packets; a packet's own is in its comment.
type Writer struct{ w io.Writer }

// NewWriter begins a file.
func NewWriter(w io.Writer) (*Writer, error) {
	out := &Writer{w: w}
	body := binary.LittleEndian.AppendUint32(nil, byteOrder)
	body = binary.LittleEndian.AppendUint16(body, 1) // version 1.0
	body = binary.LittleEndian.AppendUint16(body, 0)
	body = binary.LittleEndian.AppendUint64(body, ^uint64(0)) // the section's length is not known
	if err := out.block(blockSection, body); err != nil {
		return nil, err
	}
	body = binary.LittleEndian.AppendUint16(nil, linkRaw)
	body = binary.LittleEndian.AppendUint16(body, 0)
	body = binary.LittleEndian.AppendUint32(body, 0) // packets of any size
	body = option(body, optName, []byte("edgemesh"))
	body = option(body, optResolved, []byte{nanoseconds})
	return out, out.block(blockInterface, option(body, optEnd, nil))
}

// block writes one, with its length at both ends.
func (w *Writer) block(kind uint32, body []byte) error {
	const around = 12
	body = append(body, make([]byte, padding(len(body)))...)
	n := uint32(len(body) + around)
	out := binary.LittleEndian.AppendUint32(nil, kind)
	out = binary.LittleEndian.AppendUint32(out, n)
	out = append(out, body...)
	out = binary.LittleEndian.AppendUint32(out, n)
	_, err := w.w.Write(out)
	return err
}

// padding is how many bytes are missing to a multiple of four.
func padding(n int) int { return -n & 3 }

func option(out []byte, code uint16, value []byte) []byte {
	out = binary.LittleEndian.AppendUint16(out, code)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(value)))
	out = append(out, value...)
	return append(out, make([]byte, padding(len(value)))...)
}

// Packet writes one. The comment is shown beside it.
func (w *Writer) Packet(p Packet, comment string) error {
	at := uint64(p.At.UnixNano())
	body := binary.LittleEndian.AppendUint32(nil, 0) // the interface
	body = binary.LittleEndian.AppendUint32(body, uint32(at>>32))
	body = binary.LittleEndian.AppendUint32(body, uint32(at))
	body = binary.LittleEndian.AppendUint32(body, uint32(len(p.Data)))
	body = binary.LittleEndian.AppendUint32(body, uint32(max(p.Size, len(p.Data))))
	body = append(body, p.Data...)
	body = append(body, make([]byte, padding(len(p.Data)))...)
	flags := uint32(flagIncoming)
	if p.Out {
		flags = flagOutgoing
	}
	body = option(body, optComment, bytes.ToValidUTF8([]byte(comment+", on "+p.Link), []byte("?")))
	body = option(body, optFlags, binary.LittleEndian.AppendUint32(nil, flags))
	return w.block(blockPacket, option(body, optEnd, nil))
}

// Packet is one that was seen.
type Packet struct {
	At   time.Time
	Link string // the interface's name
	Out  bool   // it leaves this node
	Data []byte // from the IP header on, perhaps cut
	Size int    // in full
}
