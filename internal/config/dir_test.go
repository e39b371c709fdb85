package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := MakeDir("stateDir", dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{
		{file, "a file is in the way"},
		{file + "/below", "a file is in the way"},
		{"/proc/self/nonsense", "/proc/self/nonsense"},
		{"", "is empty"},
	} {
		err := MakeDir("stateDir", c.dir, 0o700)
		var key *KeyError
		if !errors.As(err, &key) || key.Key != "stateDir" || !strings.HasPrefix(err.Error(), "stateDir: ") ||
			!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "choose another directory") {
			t.Errorf("%s: %v", c.dir, err)
		}
	}
}

func TestOutsideOf(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/16")}
	good := []ma.Multiaddr{ma.StringCast("/ip4/0.0.0.0/tcp/1"), ma.StringCast("/ip6/::/tcp/1"), ma.StringCast("/dns4/a.example/tcp/1")}
	if err := OutsideOf(ranges, "listen", good); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"/ip4/10.244.7.1/udp/1/quic-v1", "/ip6/fd44::1/tcp/1", "/ip6/::ffff:10.244.7.1/tcp/1"} {
		err := OutsideOf(ranges, "listen", append(good, ma.StringCast(bad)))
		if err == nil || !strings.HasPrefix(err.Error(), "listen[3]: "+bad) || !strings.Contains(err.Error(), "podCIDRs") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
