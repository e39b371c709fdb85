// Command oob is the test cluster's out-of-band line into its nodes' networks, with
// not a packet on the networks under test.
//
//	oob -prefix PREFIX- -api CLOUD-NODE -listen 127.0.0.1:PORT -socket PATH
//
// On -listen it forwards to the API server on the cloud node, for kubectl on this
// machine. On -socket it is an HTTP CONNECT proxy for the API server's egress
// selector: a request for NODE:PORT is dialed in that node's namespace on 127.0.0.1,
// so that `kubectl logs` and `kubectl exec` reach nodes behind NAT, and nodes whose
// uplink is down. Other targets are dialed from the cloud node.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

type line struct {
	prefix, cloud string
}

func main() {
	var l line
	var listen, socket string
	flag.StringVar(&l.prefix, "prefix", "", "of the nodes' network namespaces")
	flag.StringVar(&l.cloud, "api", "cloud", "node with the API server")
	flag.StringVar(&listen, "listen", "", "HOST:PORT that leads to the API server")
	flag.StringVar(&socket, "socket", "", "Unix socket of the CONNECT proxy")
	flag.Parse()
	if err := l.run(listen, socket); err != nil {
		slog.Error("oob", "err", err)
		os.Exit(1)
	}
}

func (l line) run(listen, socket string) error {
	api, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	proxy, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- accept(api, l.forward) }()
	go func() { failed <- accept(proxy, l.connect) }()
	return <-failed
}

func accept(ln net.Listener, serve func(net.Conn)) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// forward carries one connection of this machine to the API server.
func (l line) forward(c net.Conn) {
	up, err := dial(l.prefix+l.cloud, "127.0.0.1:6443")
	if err != nil {
		return // closed: kubectl says so
	}
	defer up.Close()
	join(c, c, up)
}

// connect serves one CONNECT request (RFC 9110, section 9.3.6).
func (l line) connect(c net.Conn) {
	in := bufio.NewReader(c)
	req, err := http.ReadRequest(in)
	if err != nil || req.Method != http.MethodConnect {
		fmt.Fprint(c, "HTTP/1.1 405 CONNECT only\r\n\r\n")
		return
	}
	host, port, err := net.SplitHostPort(req.URL.Host)
	if err != nil {
		fmt.Fprint(c, "HTTP/1.1 400 bad target\r\n\r\n")
		return
	}
	ns, addr := l.prefix+l.cloud, net.JoinHostPort(host, port)
	if net.ParseIP(host) == nil {
		ns, addr = l.prefix+host, net.JoinHostPort("127.0.0.1", port)
	}
	up, err := dial(ns, addr)
	if err != nil {
		slog.Warn("dial", "namespace", ns, "addr", addr, "err", err)
		fmt.Fprint(c, "HTTP/1.1 502 unreachable\r\n\r\n")
		return
	}
	defer up.Close()
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
	join(c, in, up)
}

// join copies both ways until the far end has closed.
func join(c net.Conn, in io.Reader, up net.Conn) {
	go func() {
		_, _ = io.Copy(up, in) // a half-closed connection is over when the other half is
		if t, ok := up.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
	}()
	_, _ = io.Copy(c, up)
}

// dial connects from inside a network namespace to a literal address.
func dial(ns, addr string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and with it its namespace
		c, err := dialHere(ns, addr)
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

func dialHere(ns, addr string) (net.Conn, error) {
	f, err := os.Open("/run/netns/" + ns)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter %s: %w", ns, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// A sequential dial of one literal address uses no other thread.
	return (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", addr)
}
