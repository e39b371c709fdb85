package resolve

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"edgemesh/internal/durable"
)

const (
	// maxNames and maxKept bound the file: names, and addresses of each.
	maxNames, maxKept = 64, 4
	maxFile           = 64 << 10
)

// kept has addresses that worked, the last one first, by name.
type kept struct {
	file string
	log  *slog.Logger

	mu sync.Mutex // a leaf
	of map[string][]netip.Addr
}

func open(file string, log *slog.Logger) *kept {
	k := &kept{file: file, log: log, of: make(map[string][]netip.Addr)}
	if file == "" {
		return k
	}
	b, err := os.ReadFile(file)
	if err == nil && len(b) < maxFile {
		err = json.Unmarshal(b, &k.of)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("addresses of names ignored: until a name server answers, hosts are not reached by name", "file", file, "err", err)
	}
	if err != nil || k.of == nil {
		k.of = make(map[string][]netip.Addr)
	}
	return k
}

func (k *kept) get(name string, f Families) []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.of[name]
	return slices.DeleteFunc(slices.Clone(all[:min(len(all), maxKept)]), func(a netip.Addr) bool { return !f.has(a) })
}

// add notes an address that is new; the oldest one makes room.
func (k *kept) add(name string, a netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, known := k.of[name]
	if slices.Contains(all, a) || k.file == "" || !known && len(k.of) >= maxNames {
		return
	}
	k.of[name] = append([]netip.Addr{a}, all[:min(len(all), maxKept-1)]...)
	b, err := json.Marshal(k.of)
	if err == nil {
		err = durable.WriteFile(k.file, b, 0o600)
	}
	if err != nil {
		k.log.Warn("addresses of names not written: after a restart hosts are reached by name only if a name server answers", "file", k.file, "err", err)
	}
}
