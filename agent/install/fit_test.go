package install

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestUnfitHosts: what the agent could not work on is refused, with what to do, and nothing is written.
func TestUnfitHosts(t *testing.T) {
	conf := func(name, text string) func(*box) {
		return func(b *box) { write(t, filepath.Join(b.o.Root, "etc/cni/net.d", name), text) }
	}
	const (
		flannel = `{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}`
		bridge  = `{"cniVersion": "0.3.1", "name": "podman", "plugins": [{"type": "bridge", "bridge": "cni-podman0"}]}`
	)
	for name, c := range map[string]struct {
		prepare func(*box)
		says    string // "" is installed
	}{
		"another pod network":        {conf("10-flannel.conflist", flannel), "cniMode: keep"},
		"another pod network, first": {conf("05-mine.conf", `{"cniVersion": "1.0.0", "name": "mine", "type": "mine"}`), "drain the node"},
		"a bridge before ours":       {conf("10-containerd-net.conflist", bridge), "/etc/cni/net.d"},
		"a bridge after ours":        {conf("87-podman-bridge.conflist", bridge), ""},
		"a loopback":                 {conf("99-loopback.conf", `{"cniVersion": "0.3.1", "name": "lo", "type": "loopback"}`), ""},
		"another pod network, kept": {func(b *box) {
			conf("10-flannel.conflist", flannel)(b)
			write(t, filepath.Join(b.o.Root, "etc/edgemesh/agent.yaml"), "membership: {file: /x}\ncniMode: keep\n")
		}, ""},
		"another processor's plugin":  {func(b *box) { b.plugin(elf.EM_S390) }, "take both programs from the archive for linux/" + runtime.GOARCH},
		"this processor's plugin":     {func(b *box) { b.plugin(machines[runtime.GOARCH]) }, ""},
		"no TUN":                      {func(b *box) { b.o.TUN = func() error { return errors.New("no /dev/net/tun: run modprobe") } }, "modprobe"},
		"state of a much newer agent": {func(b *box) { write(t, filepath.Join(b.o.Root, b.o.StateDir, "version"), "v99.0.0\n") }, ""}, // a build without a version knows no order
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, Systemd)
			c.prepare(b)
			before := b.files()
			err := Install(t.Context(), b.o)
			if c.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrUnfitHost) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want one that says %q", err, c.says)
			}
			if after := b.files(); len(after) != len(before) || len(b.calls) > 0 {
				t.Errorf("written, or called (%v), though it was refused: %v, were %v", b.calls, after, before)
			}
		})
	}
}

// plugin puts a program for that processor beside the agent: no more of it than its header.
func (b *box) plugin(m elf.Machine) {
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(header[16:], uint16(elf.ET_EXEC))
	binary.LittleEndian.PutUint16(header[18:], uint16(m))
	binary.LittleEndian.PutUint32(header[20:], 1)
	binary.LittleEndian.PutUint16(header[52:], 64)
	write(b.t, filepath.Join(filepath.Dir(b.o.Binary), "edgemesh-cni"), string(header))
}

// files are all paths of the host that are no directories.
func (b *box) files() (out []string) {
	b.t.Helper()
	err := filepath.WalkDir(b.o.Root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}
