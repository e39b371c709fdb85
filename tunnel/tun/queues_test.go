package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestQueues sends flows out through a TUN with two queues: each flow comes out of
// one, in order, and of the one that its answers were written to.
func TestQueues(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	ns := newNamespace(t)
	dev, ok := ns.open(t, Config{Name: "emtest0", Queues: 2}).(*queues)
	if !ok || dev.Queues() != 2 {
		t.Fatalf("opened %+v", dev)
	}
	ns.do(t, func() error { return address("emtest0", "10.9.0.1/24") })

	const flows, each = 16, 50
	var mu sync.Mutex
	cond := sync.NewCond(&mu)
	queueOf, next, total := map[int]int{}, map[int]int{}, 0
	var wg sync.WaitGroup
	for i := range dev.Queues() {
		wg.Go(func() {
			buf := make([]byte, maxFrame)
			for {
				n, err := dev.ReadQueue(i, buf)
				if err != nil {
					if !errors.Is(err, os.ErrClosed) {
						t.Errorf("queue %d: %v", i, err)
					}
					return
				}
				p := buf[vnetHdrLen:n]
				if p[0]>>4 != 4 || p[9] != 17 || !bytes.Equal(p[16:20], []byte{10, 9, 0, 2}) {
					continue
				}
				flow, number := int(binary.BigEndian.Uint16(p[22:])), int(binary.BigEndian.Uint16(p[28:]))
				mu.Lock()
				if number == 0 {
					queueOf[flow] = i
				}
				if queueOf[flow] != i || next[flow] != number {
					t.Errorf("flow %d: packet %d came from queue %d, want %d from %d", flow, number, i, next[flow], queueOf[flow])
				}
				next[flow] = number + 1
				total++
				cond.Broadcast()
				mu.Unlock()
			}
		})
	}
	var conns []*net.UDPConn
	ns.do(t, func() error {
		for f := range flows {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: 4000 + f}, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 5000 + f})
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	for f := range flows { // an answer first: it says where the flow belongs
		l4 := make([]byte, 8)
		binary.BigEndian.PutUint16(l4, uint16(5000+f))
		binary.BigEndian.PutUint16(l4[2:], uint16(4000+f))
		binary.BigEndian.PutUint16(l4[4:], 8)
		p := append([]byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1}, l4...)
		binary.BigEndian.PutUint16(p[10:], ^sum(p[:20]))
		if err := dev.Write(append(make([]byte, vnetHdrLen), p...)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range each {
		for _, c := range conns {
			if _, err := c.Write(binary.BigEndian.AppendUint16(nil, uint16(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	mu.Lock()
	for total < flows*each && !t.Failed() {
		cond.Wait()
	}
	seen := map[int]int{}
	for flow, q := range queueOf {
		seen[q]++
		f := flow - 5000
		p := []byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1, 0, 0, 0, 0, 0, 8, 0, 0}
		binary.BigEndian.PutUint16(p[20:], uint16(5000+f))
		binary.BigEndian.PutUint16(p[22:], uint16(4000+f))
		if want := int(flowHash(p) % 2); q != want {
			t.Errorf("flow %d comes out of queue %d, its answers go into %d", f, q, want)
		}
	}
	mu.Unlock()
	if len(seen) != 2 {
		t.Errorf("%d flows are spread as %v", flows, seen)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// An interface that was left with another number of queues is made anew; one in use
// is not.
func TestQueuesOfALeftover(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	ns := newNamespace(t)
	index := func() (i int) {
		ns.do(t, func() error {
			link, err := netlink.LinkByName("emtest0")
			if err == nil {
				i = link.Attrs().Index
			}
			return err
		})
		return i
	}
	last := 0
	for _, step := range []struct {
		queues int
		anew   bool
	}{{1, true}, {2, true}, {3, false}, {2, false}, {0, true}, {1, false}} {
		dev := ns.open(t, Config{Name: "emtest0", Persist: true, Queues: step.queues})
		other := 3 - min(max(step.queues, 1), 2)
		ns.do(t, func() error {
			if _, err := Open(Config{Name: "emtest0", Queues: other}); !errors.Is(err, ErrBusy) {
				t.Errorf("with %d queues beside one that has %d: %v, want ErrBusy", other, step.queues, err)
			}
			return nil
		})
		i := index()
		if i != last != step.anew {
			t.Errorf("%d queues: interface %d after %d, want a new one: %v", step.queues, i, last, step.anew)
		}
		last = i
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneProcessorOneQueue(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var log bytes.Buffer
	dev := newNamespace(t).open(t, Config{Name: "emtest0", Queues: 4, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if _, ok := dev.(*fast); !ok {
		t.Errorf("opened a %T", dev)
	}
	if !strings.Contains(log.String(), "one queue") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged %q", log.String())
	}
}

func TestFlowHash(t *testing.T) {
	spread := map[uint32]int{}
	for i := range 256 {
		for _, v6 := range []bool{false, true} {
			there, back := flowPackets(v6, i)
			if flowHash(there) != flowHash(back) {
				t.Fatalf("v6 %v, flow %d: the two directions differ", v6, i)
			}
			spread[flowHash(there)%4]++
		}
	}
	for q, n := range spread {
		if n < 64 {
			t.Errorf("queue %d gets %d of 512 flows", q, n)
		}
	}
	for n := range 48 { // never behind its end
		_ = flowHash(make([]byte, n))
		_ = flowHash(append([]byte{0x60}, make([]byte, n)...))
		_ = flowHash(append([]byte{0x45}, make([]byte, n)...))
	}
	a, _ := flowPackets(false, 1)
	b, _ := flowPackets(false, 2)
	a[6], b[6] = 0x20, 0x20 // fragments: no ports to look at
	if flowHash(a) != flowHash(b) {
		t.Error("fragments of a packet are hashed by what is no port")
	}
}

// flowPackets are a UDP packet and its answer.
func flowPackets(v6 bool, flow int) (there, back []byte) {
	make4 := func(a, b byte, sp, dp int) []byte {
		p := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, a, 10, 0, 1, b, 0, 0, 0, 0, 0, 8, 0, 0}
		if v6 {
			p = append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, make([]byte, 40)...)
			p[8], p[23], p[24], p[39] = 0xfd, a, 0xfd, b
		}
		binary.BigEndian.PutUint16(p[len(p)-8:], uint16(sp))
		binary.BigEndian.PutUint16(p[len(p)-6:], uint16(dp))
		return p
	}
	there = make4(1, 2, 1000+flow, 53)
	back = make4(1, 2, 53, 1000+flow)
	n := 4
	at := 12
	if v6 {
		n, at = 16, 8
	}
	src := bytes.Clone(back[at : at+n])
	copy(back[at:], back[at+n:at+2*n])
	copy(back[at+n:], src)
	if bytes.Equal(there, back) {
		panic(fmt.Sprint("the same packet twice: ", flow))
	}
	return there, back
}
