// Command apiport forwards a port of this machine to the API server in the cloud node's network namespace, for kubectl
// on this machine. It reaches nothing else: the way from the API server to kubelets is the cluster's own.
//
//	apiport -namespace NAME -listen 127.0.0.1:PORT
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	namespace := flag.String("namespace", "", "network namespace with the API server")
	listen := flag.String("listen", "", "HOST:PORT that leads to the API server")
	flag.Parse()
	if err := run(*namespace, *listen); err != nil {
		slog.Error("apiport", "err", err)
		os.Exit(1)
	}
}

func run(namespace, listen string) error {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			up, err := dial(namespace, "127.0.0.1:6443")
			if err != nil {
				slog.Warn("dial", "namespace", namespace, "err", err)
				return // closed: kubectl says so
			}
			defer up.Close()
			join(c, up)
		}()
	}
}

// join copies in both directions until the far end has closed.
func join(c, up net.Conn) {
	go func() {
		_, _ = io.Copy(up, c) // a half-closed connection is over when the other half is
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
