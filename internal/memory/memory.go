// Package memory keeps the process within the memory that its cgroup may use.
//
//	memory.go   the Go runtime's part
//	program.go  the program's own pages
package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Limit has the runtime collect more often as it comes near the memory that the cgroup allows, and returns that, in bytes;
// 0: any amount. Otherwise it would let the heap grow to twice what is in use, and the kernel would end the process.
// $GOMEMLIMIT takes precedence.
func Limit() int64 {
	most := OfCgroup()
	if most > 0 && most < tight {
		_ = byPage() // without it, it is only slower
	}
	if most > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(forGo(most))
	}
	return most
}

// forGo is what the runtime may use of most. The rest is for the program's own pages, of which some 20 MB are in use, and
// the kernel's buffers of sockets, which the cgroup is charged for as well.
func forGo(most int64) int64 { return most - max(most/4, min(most/2, 24<<20)) }

// OfCgroup is the memory that the process's cgroup allows, in bytes; 0: any amount.
func OfCgroup() int64 { return ofCgroup(os.DirFS("/")) }

// room is by how much, in bytes, a large heap grows before it is collected.
const room = 32 << 20

// Trim gives back what building large structures has left behind, and has a heap that is mostly such structures be
// collected before it has doubled. It takes the time of a collection. $GOGC takes precedence.
func Trim() {
	debug.FreeOSMemory()
	if os.Getenv("GOGC") != "" {
		return
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	debug.SetGCPercent(percent(m.HeapAlloc))
}

// startTime is after how long a program that was started does what it always does.
const startTime = 15 * time.Second

// AfterStart gives back what starting leaves behind. The runtime would keep it for as long as little is allocated, which
// is what idle programs do.
func AfterStart() {
	time.AfterFunc(startTime, func() {
		debug.FreeOSMemory()
		// A small group would drop what is not mapped, and read it again page by page.
		if most := OfCgroup(); most == 0 || most >= tight {
			_ = unmap() // without it, more counts as in use
		}
	})
}

// percent is the runtime's GOGC for so many bytes in use.
func percent(live uint64) int { return int(min(100, max(25, 100*room/max(live, 1)))) }

// ofCgroup returns the lowest limit of the process's cgroup and those above it, 0 without one. In a container the paths
// may be those of the host, which are not mounted: then the root's limit is the container's.
func ofCgroup(root fs.FS) int64 {
	lines, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	lowest := int64(math.MaxInt64)
	for line := range strings.Lines(string(lines)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max" // version 2
		if parts[1] == "memory" {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[0] != "0" || parts[1] != "" {
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			if n, ok := read(root, path.Join(mount, at, file)); ok {
				lowest = min(lowest, n)
			}
			if at == "/" {
				break
			}
		}
	}
	if lowest >= 1<<62 { // version 1 says so where there is no limit: a little less than the highest number
		return 0
	}
	return lowest
}

// read returns a limit; ok is false where there is none.
func read(root fs.FS, name string) (n int64, ok bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // or "max"
	return n, err == nil && n > 0
}
