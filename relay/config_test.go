package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	agent "edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
)

func multiaddrs(list ...string) []ma.Multiaddr {
	var out []ma.Multiaddr
	for _, s := range list {
		out = append(out, ma.StringCast(s))
	}
	return out
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMembershipIsEnough(t *testing.T) {
	c, err := membershipConfig("cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(c.membership.File) || c.stateDir != "/var/lib/edgemesh-relay" || c.metricsAddress != "127.0.0.1:9470" {
		t.Errorf("got %+v", c)
	}
	if len(c.listen) < 2 || !c.listen[0].Equal(ma.StringCast("/ip4/0.0.0.0/tcp/4470")) ||
		!c.listen[1].Equal(ma.StringCast("/ip4/0.0.0.0/udp/4470/quic-v1")) {
		t.Errorf("listen %v", c.listen)
	}
	if want := (agent.RelayLimits{MaxReservations: 16384, MaxReservationsPerIP: 16384, MaxCircuits: 8192, MaxCircuitsPerPeer: 1024, BufferSize: 16384}); c.limits != want {
		t.Errorf("limits %+v, want %+v", c.limits, want)
	}
}

func TestLoadConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeFile(t, path, `stateDir: /s
listen: [/ip4/0.0.0.0/tcp/5000, /ip4/0.0.0.0/udp/5000/quic-v1]
announce: [/ip4/5.5.5.5, /dns4/relay.example.org/tcp/443, /ip4/5.5.5.5/tcp/5000]
membership: {file: /m.yaml}
metricsAddress: ""
limits: {maxReservations: 10, maxCircuits: 20, bufferSize: 4096}
`)
	want := config{
		file: path, stateDir: "/s", runtimeDir: agent.DefaultRuntimeDir, membership: agent.Membership{File: "/m.yaml"},
		listen:   multiaddrs("/ip4/0.0.0.0/tcp/5000", "/ip4/0.0.0.0/udp/5000/quic-v1"),
		announce: multiaddrs("/ip4/5.5.5.5/tcp/5000", "/ip4/5.5.5.5/udp/5000/quic-v1", "/dns4/relay.example.org/tcp/443"),
		limits:   agent.RelayLimits{MaxReservations: 10, MaxReservationsPerIP: 10, MaxCircuits: 20, MaxCircuitsPerPeer: 20, BufferSize: 4096},
	}
	got, err := loadConfig(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestLoadConfigRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", "public: 5.5.5.5", "public: unknown field"},
		{"unknown limit", "limits: {circuits: 3}", "limits.circuits: unknown field"},
		{"zero limit", "limits: {maxCircuits: 0}", "limits.maxCircuits: 0 is not between 1 and"},
		{"negative limit", "limits: {maxReservations: -1, maxReservationsPerIP: 1}", "limits.maxReservations: -1"},
		{"small buffer", "limits: {bufferSize: 100}", "limits.bufferSize: 100 is not between 2048 and 1048576"},
		{"no bandwidth", "limits: {bandwidth: 0}", "limits.bandwidth: 0 is not between 1 and 1000000"},
		{"bandwidth as text", "limits: {bandwidth: 100M}", "limits.bandwidth: must be a whole number"},
		{"unfair", "limits: {maxCircuits: 4, maxCircuitsPerPeer: 5}", "limits.maxCircuitsPerPeer: 5 is more than maxCircuits (4)"},
		{"limit as text", `limits: {maxCircuits: "4"}`, "limits.maxCircuits: must be a whole number"},
		{"relative stateDir", "stateDir: s", `stateDir: "s" is not an absolute path`},
		{"listen", "listen: [/ip4/0.0.0.0/udp/5000]", "listen[0]: "},
		{"announce text", "announce: [5.5.5.5]", `announce[0]: "5.5.5.5" is not a multiaddr`},
		{"announce with ID", "announce: [/ip4/5.5.5.5/tcp/1/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m]", "announce[0]: "},
		{"announce only ID", "announce: [/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m]", "announce[0]: "},
		{"announce transport", "announce: [/ip4/5.5.5.5/udp/1]", "announce[0]: "},
		{"announce port 0", "announce: [/ip4/5.5.5.5/tcp/0]", "announce[0]: "},
		{"announce path", "announce: [/unix/tmp]", "announce[0]: "},
		{"metrics", "metricsAddress: 9470", "metricsAddress: must be a string"},
		{"kubernetes", "membership: {kubernetes: {server: a}}", "membership.kubernetes.server: "},
		{"no membership", "membership: {}", "membership.file: missing"},
		{"a secret of no use", "membership: {}\njoinSecretFile: /s\nsigners: [12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m]", "joinSecretFile: is of no use where signers pins a key"},
		{"two documents", "---\nstateDir: /s\n---\nstateDir: /t", "second YAML document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := c.text
			if !strings.Contains(text, "membership") && c.name != "two documents" {
				text += "\nmembership: {file: /m.yaml}\n"
			}
			path := filepath.Join(t.TempDir(), "relay.yaml")
			writeFile(t, path, text)
			_, err := loadConfig(path)
			var bad *mesh.Invalid
			if !errors.As(err, &bad) {
				t.Fatalf("error %v, want a *mesh.Invalid", err)
			}
			if len(bad.Problems) != 1 || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got:\n%v\nwant one line with %s and %q", err, path, c.want)
			}
		})
	}
}

// Keys that signersFile has no longer once the relay is to end, or that are unusable by then, end it not; others do, later.
func TestSignersFileIsReadAgain(t *testing.T) {
	const first, second = "12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m", "12D3KooWRnyfsMFE2cRZumFdRhFUj2FkyX7fH3vxqqFXjDgonXjd"
	const third = "12D3KooWSiNn6HmgyEb7z5fCb9sBo7hyPA4DgyXAEUSxtGJwcMUt"
	dir := t.TempDir()
	for what, then := range map[string]string{"empty": "", "invalid": "x", "as before": first} {
		synctest.Test(t, func(t *testing.T) {
			file, ended, asked := filepath.Join(dir, what), 0, 0
			writeFile(t, file, second)
			serves := func() bool { // called before it waits
				if asked++; asked == 1 {
					writeFile(t, file, then)
				}
				return true
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			c := config{signersFile: file, signersText: first}
			go c.followSigners(ctx, serves, func() { ended++ }, slog.New(slog.DiscardHandler))
			time.Sleep(3 * endsApart)
			synctest.Wait()
			if ended > 0 {
				t.Fatalf("%s: it ends", what)
			}
			writeFile(t, file, third)
			time.Sleep(endsApart + 2*time.Second)
			synctest.Wait()
			if ended != 1 {
				t.Errorf("%s: with other keys it ends %d times", what, ended)
			}
		})
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("membership: {file: /m.yaml}\nannounce: [/ip4/5.5.5.5]\nlimits: {maxCircuits: 4}")
	f.Add("membership: {file: /m.yaml}\nannounce: [/, \"\", /ip4/5.5.5.5/p2p-circuit]\nlisten: [/ip6zone/x/ip6/::/tcp/1]")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "relay.yaml")
		writeFile(t, path, text)
		c, err := loadConfig(path)
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Fatalf("error without the path: %v", err)
			}
			return
		}
		if len(c.listen) == 0 || c.limits.MaxCircuits < 1 || !filepath.IsAbs(c.stateDir) {
			t.Fatalf("accepted %+v", c)
		}
	})
}
