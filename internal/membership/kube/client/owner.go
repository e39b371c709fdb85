package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/prometheus/procfs"

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
// inode, and reads as root's.
func acceptedBy(ctx context.Context, local, remote *net.TCPAddr) (uint64, error) {
	proc, err := procfs.NewFS("/proc/thread-self") // the network namespace is the thread's
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, maxAcceptWait) {
		//lint:ignore SA1019 the replacement needs the kernel's tcp_diag, which is a module that edges may lack; /proc has it always
		for _, list := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} { //nolint:staticcheck // likewise; a server on [::] has its IPv4 connections in the second one
			all, err := list()
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
				return 0, err
			}
			for i := range all {
				s := all[i]
				if s.LocalPort == uint64(local.Port) && s.RemPort == uint64(remote.Port) && s.LocalAddr.Equal(local.IP) && s.RemAddr.Equal(remote.IP) && s.Inode != 0 { //nolint:gosec // ports
					return s.UID, nil
				}
			}
		}
		if !wake.Sleep(ctx, wait) {
			return 0, fmt.Errorf("no program accepts it (%w): what has that port hangs; restart the node's API cache", errOwner)
		}
	}
}
