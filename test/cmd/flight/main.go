// Command flight carries the packets of a TUN to one peer with package flight over UDP: what the controller and the transport do on
// real sockets, before the agent uses them. Keys come from the command line, so it is for tests only.
//
//	flight -tun proto0 -local 5.5.1.1:4500 -remote 5.5.2.1:4500 -first
//
//	main.go   the program
//	node.go   one end: its TUN, its socket, its path
//	queue.go  flows that wait, fair queueing with CoDel
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/tunnel/acks"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/tun"
)

func main() {
	name := flag.String("tun", "proto0", "interface")
	local := flag.String("local", "", "address and port")
	remote := flag.String("remote", "", "the peer's")
	first := flag.Bool("first", false, "which of the two this is")
	verbose := flag.Bool("v", false, "write each second what the path does")
	flag.Parse()
	runtime.GOMAXPROCS(1)
	if err := run(*name, *local, *remote, *first, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "flight:", err)
		os.Exit(1)
	}
}

func run(name, local, remote string, first, verbose bool) error {
	dev, err := tun.Open(tun.Config{Name: name, MTU: 1500, Portable: true}) // without super-segments: the queue cuts none
	if err != nil {
		return err
	}
	from, err := net.ResolveUDPAddr("udp4", local)
	if err != nil {
		return err
	}
	to, err := net.ResolveUDPAddr("udp4", remote)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp4", from)
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
	})
	if err != nil {
		return err
	}
	secret := func(first bool) []byte { s := sha256.Sum256(fmt.Append(nil, first)); return s[:] }
	n := &node{dev: dev, conn: conn, to: to.AddrPort(), start: time.Now(), woken: make(chan struct{}, 1)}
	if n.sealer, err = sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret(first), 1); err != nil {
		return err
	}
	if n.opener, err = sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret(!first)); err != nil {
		return err
	}
	n.peer = flight.NewPeer(n, sink{n}, flight.NewMemory(64<<20))
	n.path = n.peer.NewPath(overhead)
	n.acks = acks.New(7, new(sync.WaitGroup), func() bool { return n.clean.Load() }, n.writeAck)
	go n.receive()
	go n.send()
	if verbose {
		go n.watch()
	}
	return n.read()
}
