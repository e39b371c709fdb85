package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"edgemesh/internal/wake"
)

const (
	// acceptTimeout is how long a server on this host may take to accept a connection.
	acceptTimeout = 5 * time.Second
	// maxAcceptWait is the longest interval at which that is looked for.
	maxAcceptWait = 100 * time.Millisecond
)

// errOwner is a connection without TLS that another user's program has accepted, or nobody on this host.
var errOwner = errors.New("nothing was sent to it")

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// owned dials, and refuses what is not a connection to a program of root's or of the user uid on this host: without TLS nothing else says who answers, and any user may take the port of a cache that restarts.
func owned(dial dial, uid int) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := checkOwner(ctx, c, uid); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
}

func checkOwner(ctx context.Context, c net.Conn, uid int) error {
	here, ok1 := c.LocalAddr().(*net.TCPAddr)
	there, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 || !there.IP.IsLoopback() && !there.IP.Equal(here.IP) {
		return fmt.Errorf("%s is not on this host, and without TLS everybody on the path could change who the members are (%w): use https in "+
			"membership.kubernetes.server or the kubeconfig", c.RemoteAddr(), errOwner)
	}
	owner, err := acceptedBy(ctx, there, here)
	switch {
	case err != nil:
		return fmt.Errorf("check which user's program has accepted the connection to %s: %w", there, err)
	case owner != 0 && owner != uint64(uid): //nolint:gosec // not negative on Linux
		return fmt.Errorf("the program at %s runs as user %d, not as root (%w): if the node's API cache runs as that user, set "+
			"membership.kubernetes.localUID: %d; otherwise find out what took the cache's port and end it", there, owner, errOwner, owner)
	}
	return nil
}

// acceptedBy returns the user who has accepted the connection whose socket on the server's side is bound to local and
// connected to remote. The listener does not say: it may be another user's by now. A socket that is not accepted yet has no
// inode, and reads as root's. The kernel's tcp_diag is a module that edges may lack; /proc has the lists always (proc_net_tcp.rst).
func acceptedBy(ctx context.Context, local, remote *net.TCPAddr) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, maxAcceptWait) {
		for file, length := range map[string]int{"tcp": net.IPv4len, "tcp6": net.IPv6len} { // a server on [::] has its IPv4 connections in the second one
			all, err := os.ReadFile("/proc/thread-self/net/" + file) // the network namespace is the thread's
			if err != nil && !errors.Is(err, fs.ErrNotExist) {       // a kernel without IPv6
				return 0, err
			}
			from, to := listed(local, length), listed(remote, length)
			for line := range strings.Lines(string(all)) {
				const localAt, remoteAt, uidAt, inodeAt = 1, 2, 7, 9
				if f := strings.Fields(line); len(f) > inodeAt && f[localAt] == from && f[remoteAt] == to && f[inodeAt] != "0" {
					return strconv.ParseUint(f[uidAt], 10, 32)
				}
			}
		}
		if !wake.Sleep(ctx, wait) {
			return 0, fmt.Errorf("no program accepts it (%w): what has that port hangs; restart the node's API cache", errOwner)
		}
	}
}

// listed is an address as the kernel lists it among those of that length: words of 4 bytes in the host's order, and the port.
// An address that does not have that length equals none in the list.
func listed(a *net.TCPAddr, length int) string {
	ip := a.IP.To16()
	if length == net.IPv4len {
		ip = a.IP.To4()
	}
	var b strings.Builder
	for word := range slices.Chunk(ip, 4) {
		fmt.Fprintf(&b, "%08X", binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", &b, a.Port)
}
