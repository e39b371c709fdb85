package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxQueues is MAX_TAP_QUEUES of linux/drivers/net/tun.c's users in practice: more
// readers than that find nothing to do.
const maxQueues = 8

// queues is a fast TUN with several queues (IFF_MULTI_QUEUE): the kernel puts all
// packets of a flow into one, that which the flow's packets of the other direction were
// written to.
type queues struct {
	*fast // the first
	all   []*fast
}

var _ Device = (*queues)(nil)

// queues is how many there are to be: no more than processors.
func (cfg Config) queues() int {
	n := min(cfg.Queues, maxQueues, runtime.GOMAXPROCS(0))
	if cfg.Portable {
		n = 1
	}
	if n < 2 && cfg.Queues > 1 && cfg.Log != nil {
		cfg.Log.Info("tun: one queue: there is one processor, or the device has no more", "name", cfg.Name, "wanted", cfg.Queues)
	}
	return max(n, 1)
}

// openQueues opens the fast device with as many queues as cfg says.
func openQueues(cfg Config) (Device, error) {
	if cfg.Queues < 2 {
		dev, err := openFast(cfg)
		if err != nil {
			return nil, err // not a typed nil in the interface
		}
		return dev, nil
	}
	q := &queues{}
	for range cfg.Queues {
		dev, err := openFast(cfg)
		if err != nil {
			_ = q.close()
			return nil, err
		}
		q.all = append(q.all, dev)
	}
	q.fast = q.all[0]
	return q, nil
}

// Queues is how many there are.
func (q *queues) Queues() int { return len(q.all) }

// ReadQueue is Read for one of them.
func (q *queues) ReadQueue(i int, buf []byte) (int, error) { return q.all[i].Read(buf) }

func (q *queues) Write(buf []byte) error {
	if len(buf) <= vnetHdrLen {
		return ErrFrame
	}
	return q.all[flowHash(buf[vnetHdrLen:])%uint32(len(q.all))].Write(buf)
}

func (q *queues) Close() error { return q.close() }

func (q *queues) close() error {
	var err error
	for _, d := range q.all {
		err = errors.Join(err, d.Close())
	}
	return err
}

// flowHash is the same for both directions of a flow, and for all fragments of a
// packet.
func flowHash(pkt []byte) uint32 {
	var sum uint64
	proto, l4 := byte(0), 0
	le := binary.LittleEndian
	switch n := ipHeaderLen(pkt); {
	case n > len(pkt):
		return 0
	case pkt[0]>>4 == 4:
		sum = uint64(le.Uint32(pkt[12:])) + uint64(le.Uint32(pkt[16:]))
		if binary.BigEndian.Uint16(pkt[6:])&0x3fff == 0 {
			proto, l4 = pkt[9], n
		}
	default:
		sum = le.Uint64(pkt[8:]) + le.Uint64(pkt[24:]) + le.Uint64(pkt[16:])*3 + le.Uint64(pkt[32:])*3
		proto, l4 = pkt[6], n
	}
	if (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP) && len(pkt) >= l4+4 {
		sum += uint64(le.Uint16(pkt[l4:])) + uint64(le.Uint16(pkt[l4+2:]))
	}
	return uint32((sum ^ sum>>32) * 0x9e3779b97f4a7c15 >> 40)
}

// replaceFlag makes the name free for an interface with another multi-queue flag: to
// attach would be EINVAL. One that somebody holds is ErrBusy.
func replaceFlag(cfg Config) error {
	tt, err := lookup(cfg.Name)
	if err != nil || tt == nil || (tt.Flags&netlink.TUNTAP_MULTI_QUEUE != 0) == (cfg.Queues > 1) {
		return err
	}
	if tt.Queues+tt.DisabledQueues > 0 {
		return ErrBusy
	}
	if cfg.Queues > 1 { // only attaching tells whether somebody holds one with a single queue
		single := cfg
		single.Queues = 1
		dev, err := openFast(single)
		switch {
		case errors.Is(err, errNoOffload):
			return nil // and the portable device takes it as it is
		case err != nil:
			return err
		}
		defer dev.Close()
	}
	if err := Delete(cfg.Name); err != nil {
		return fmt.Errorf("replace an interface with another number of queues: %w", err)
	}
	return nil
}
