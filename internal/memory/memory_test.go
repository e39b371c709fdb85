package memory

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestOfCgroup(t *testing.T) {
	const mb = 1 << 20
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups":           {nil, 0},
		"version 2, container": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n"}, 64 * mb},
		"version 2, unit": {map[string]string{"proc/self/cgroup": "0::/system.slice/edgemesh.service\n", "sys/fs/cgroup/system.slice/edgemesh.service/memory.max": "max\n",
			"sys/fs/cgroup/system.slice/memory.max": "134217728\n"}, 128 * mb},
		"version 2, no limit": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"version 1": {map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/pod\n2:memory:/pod/c\n1:name=systemd:/x\n0::/x\n", "sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes": "67108864\n",
			"sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "100000000\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 64 * mb},
		"version 1, container that sees the host's path": {map[string]string{"proc/self/cgroup": "2:memory:/kubepods/pod1/c\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "33554432\n"}, 32 * mb},
		"version 1, no limit":                            {map[string]string{"proc/self/cgroup": "2:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"nonsense":                                       {map[string]string{"proc/self/cgroup": "\n::\n0:\n0::../../..\n", "sys/fs/cgroup/memory.max": "-1\n"}, 0},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := ofCgroup(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestForGo(t *testing.T) {
	for most, want := range map[int64]int64{64 << 20: 40 << 20, 1 << 30: 768 << 20, 20 << 20: 10 << 20} {
		if got := forGo(most); got != want {
			t.Errorf("of %d: %d, want %d", most, got, want)
		}
	}
}

func TestPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 6 << 20: 100, 32 << 20: 100, 64 << 20: 50, 1 << 30: 25} {
		if got := percent(live); got != want {
			t.Errorf("%d bytes: %d, want %d", live, got, want)
		}
	}
}

func TestMappings(t *testing.T) {
	maps := `00400000-01200000 r-xp 00000000 fe:00 262203   /usr/bin/edgemesh-agent
01200000-02400000 r--p 00e00000 fe:00 262203   /usr/bin/edgemesh-agent
02400000-024a0000 rw-p 02000000 fe:00 262203   /usr/bin/edgemesh-agent
c000000000-c000400000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r-xp 00000000 fe:00 1   /usr/bin/other
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0   [vdso]
nonsense
`
	var got [][2]uintptr
	for from, to := range mappings([]byte(maps), "/usr/bin/edgemesh-agent") {
		got = append(got, [2]uintptr{from, to})
	}
	if want := [][2]uintptr{{0x400000, 0x1200000}, {0x1200000, 0x2400000}}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if err := byPage(); err != nil {
		t.Error(err)
	}
}

// The program continues with less of itself mapped.
func TestUnmap(t *testing.T) {
	before := mapped(t)
	if err := unmap(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d kB of files are mapped, %d kB before", after, before)
	}
}

// mapped is how much of files the process has mapped and used, in kB.
func mapped(t *testing.T) (kb int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}
