package snapshot

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
)

func state() mesh.State {
	p := netip.MustParsePrefix
	return mesh.State{
		PodCIDRs:   []netip.Prefix{p("10.244.0.0/16"), p("fd00:10:244::/56")},
		WANCIDRs:   []netip.Prefix{p("172.20.0.0/16")},
		Encryption: mesh.EncryptionAlways,
		Access: mesh.Access{
			HostAccess: mesh.HostNone, HostPorts: []mesh.HostPort{{Port: 53, Proto: "udp"}},
			PodDenyCIDRs: []netip.Prefix{p("169.254.169.254/32")},
		},
		Relays: []mesh.Relay{{PeerID: "R", Addrs: []string{"/ip4/5.5.5.5/tcp/4470"}}},
		Nodes:  []mesh.Node{{Name: "edge-1", PeerID: "E", PodCIDRs: []netip.Prefix{p("10.244.1.0/24")}}},
	}
}

func TestSaveLoad(t *testing.T) {
	dir := t.TempDir()
	if err := Save(dir, state()); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, state()) {
		t.Errorf("got %+v, want %+v", got, state())
	}
	fi, err := os.Stat(filepath.Join(dir, File))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestSaveWritesOnlyChanges(t *testing.T) {
	dir := t.TempDir()
	stat := func() fs.FileInfo {
		t.Helper()
		if err := Save(dir, state()); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(filepath.Join(dir, File))
		if err != nil {
			t.Fatal(err)
		}
		return fi
	}
	if !os.SameFile(stat(), stat()) {
		t.Error("an equal snapshot was written again")
	}
	s := state()
	s.Nodes = nil
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(dir); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v, %v; want %+v", got, err, s)
	}
}

func TestLoadRefusesTornSnapshots(t *testing.T) {
	good := t.TempDir()
	if err := Save(good, state()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(good, File))
	if err != nil {
		t.Fatal(err)
	}
	for name, torn := range map[string][]byte{
		"empty":         nil,
		"half":          data[:len(data)/2],
		"zeros":         make([]byte, len(data)),
		"edited":        bytes.Replace(data, []byte("10.244.1.0/24"), []byte("10.244.9.0/24"), 1),
		"other version": bytes.Replace(data, []byte(`"version":1`), []byte(`"version":2`), 1),
		"twice":         append(append([]byte(nil), data...), data...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, File)
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(dir)
			if !errors.Is(err, ErrTorn) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want ErrTorn with the path", err)
			}
			if err := Save(dir, state()); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir); err != nil {
				t.Errorf("after Save: %v", err)
			}
		})
	}
}

// A snapshot with a right checksum but wrong content was written by a bug.
func TestLoadRefusesInvalidState(t *testing.T) {
	dir := t.TempDir()
	s := state()
	s.Encryption = "sometimes"
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrTorn) || !strings.Contains(err.Error(), "encryption") {
		t.Errorf("error %v, want ErrTorn with the field", err)
	}
}

func TestLoadWithoutSnapshot(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestSaveFailsInAMissingDirectory(t *testing.T) {
	if err := Save(filepath.Join(t.TempDir(), "none"), state()); err == nil {
		t.Error("no error")
	}
}
