package lantest

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Kernel is a lan.Kernel that remembers what it was given.
type Kernel struct {
	mu      sync.Mutex
	uplinks []mesh.Uplink
	suspect bool
	takes   time.Duration
	sets    int
	paths   mesh.Paths
	counts  map[mesh.Inlet]mesh.Count
	probes  [2]netip.Addr
}

// SetPaths implements lan.Kernel.
func (k *Kernel) SetPaths(_ context.Context, p mesh.Paths) error {
	k.mu.Lock()
	takes := k.takes
	k.mu.Unlock()
	time.Sleep(takes)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets++
	k.suspect, k.paths = false, p
	return nil
}

// PathsSuspect implements lan.Kernel.
func (k *Kernel) PathsSuspect() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.suspect
}

// Uplinks implements lan.Kernel.
func (k *Kernel) Uplinks() ([]mesh.Uplink, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.uplinks, nil
}

// Neighbour implements lan.Kernel: it never looked.
func (k *Kernel) Neighbour(string, netip.Addr) (mac [6]byte, confirmed time.Time, err error) {
	return mac, confirmed, errors.ErrUnsupported
}

// Traffic implements lan.Kernel.
func (k *Kernel) Traffic() (map[mesh.Inlet]mesh.Count, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts, nil
}

// ProbeAddrs implements lan.Kernel.
func (k *Kernel) ProbeAddrs() [2]netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.probes
}

// SetProbeAddrs says where forwarded probes are taken from now on.
func (k *Kernel) SetProbeAddrs(addrs [2]netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.probes = addrs
}

// SetTraffic says what was counted.
func (k *Kernel) SetTraffic(counts map[mesh.Inlet]mesh.Count) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts = counts
}

// Slow has one call of SetPaths take d from now on. The service holds its mutex meanwhile,
// and time stands still in a bubble where anybody waits for it: call none of its methods.
func (k *Kernel) Slow(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takes = d
}

// Suspect has the kernel say that it may have lost paths.
func (k *Kernel) Suspect() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.suspect = true
}

// SetUplinks gives the node other addresses; the service is to be notified.
func (k *Kernel) SetUplinks(all ...mesh.Uplink) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.uplinks = all
}

// Sets is how often SetPaths was called.
func (k *Kernel) Sets() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sets
}

// Paths are those of the last call.
func (k *Kernel) Paths() mesh.Paths {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.paths
}

// LetIn counts the blocks of which pods' packets may come in.
func (k *Kernel) LetIn() int {
	n := 0
	for _, s := range k.Paths().Senders {
		if s.Pods {
			n++
		}
	}
	return n
}
