package endpoint

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Mesh in place of an address's host means 127.0.0.1 and, as far as this host has them, its mesh addresses. Nothing else:
// a host's LAN is not meant.
const Mesh = "mesh"

// Loopback is the address to listen on at first: mesh:PORT is 127.0.0.1:PORT, any other one is itself. It reports whether
// mesh addresses are to follow.
func Loopback(address string) (string, bool) {
	port, ok := strings.CutPrefix(address, Mesh+":")
	if !ok {
		return address, false
	}
	return net.JoinHostPort("127.0.0.1", port), true
}

// Local is the host at which a program of this host that listens on host is reached: one that listens everywhere, or at mesh
// addresses, also does on 127.0.0.1.
func Local(host string) string {
	if host == "" || host == "localhost" || host == Mesh || net.ParseIP(host).IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// Follower serves one handler on one port of addresses that come and go.
type Follower struct {
	h    http.Handler
	port uint16
	log  *slog.Logger

	mu      sync.Mutex // nothing else is locked while it is held
	serving map[netip.Addr]func()
	failed  map[netip.Addr]string // why an address could not be listened on, as was logged
}

// NewFollower serves h on the port of at, where it is served already.
func NewFollower(at net.Addr, h http.Handler, log *slog.Logger) (*Follower, error) {
	_, text, err := net.SplitHostPort(at.String())
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port of %s: %w", at, err)
	}
	return &Follower{h: h, port: uint16(port), log: log, serving: map[netip.Addr]func(){}, failed: map[netip.Addr]string{}}, nil
}

// Set serves on these addresses and no others. One that cannot be listened on now is tried again by the next call.
func (f *Follower) Set(addrs []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for a, stop := range f.serving {
		if !slices.Contains(addrs, a) {
			stop()
			delete(f.serving, a)
		}
	}
	for _, a := range addrs {
		if f.serving[a] != nil {
			continue
		}
		at := netip.AddrPortFrom(a, f.port)
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			if f.failed[a] != err.Error() {
				f.log.Warn("metrics cannot be fetched at a mesh address of this node; trying again", "address", at, "err", err)
			}
			f.failed[a] = err.Error()
			continue
		}
		delete(f.failed, a)
		f.serving[a] = Serve(l, f.h, f.log)
		f.log.Info("serving metrics", "address", at)
	}
}

// Close stops serving.
func (f *Follower) Close() { f.Set(nil) }
