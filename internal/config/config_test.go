package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/disktest"
	"edgemesh/internal/membership/mesh"
)

func hostNamed(name string) func() (string, error) {
	return func() (string, error) { return name, nil }
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The plugin knows the same defaults; relays read configurations and know no plugin.
func TestDefaultsAreThePlugins(t *testing.T) {
	if DefaultCNIDataDir != conf.DefaultDataDir || DefaultRuntimeDir != conf.DefaultRuntimeDir {
		t.Errorf("%s and %s, the plugin has %s and %s", DefaultCNIDataDir, DefaultRuntimeDir, conf.DefaultDataDir, conf.DefaultRuntimeDir)
	}
}

// The plugin accepts what is accepted here, and nothing else.
func TestExcludeIsThePlugins(t *testing.T) {
	for _, text := range []string{"10.1.1.9", "10.1.1.0/24", "10.1.1.7/24", "10.1.1.1-10.1.1.9", "fd00::5-fd00::9", "fd00::/64",
		"", "x", "10.1.1.1/33", "10.1.1.9-fd00::1", "10.1.1.9-10.1.1.1", "fe80::1%eth0", "-", "10.1.1.1-"} {
		var bad mesh.Invalid
		CNI{Exclude: []string{text}}.check(&bad)
		c := conf.NetConf{DataDir: "/d", RuntimeDir: "/r", Bridge: "b", KeepOnly: "all", Exclude: []string{text}}
		if ours, theirs := bad.Err(), c.Validate(""); (ours == nil) != (theirs == nil) {
			t.Errorf("%q: %v; the plugin: %v", text, ours, theirs)
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	path := write(t, "membership: {file: /etc/edgemesh/cluster.yaml}\n")
	want := Config{
		NodeName:       "edge-7.example.org",
		StateDir:       "/var/lib/edgemesh",
		RuntimeDir:     "/run/edgemesh",
		CNIConfDir:     "/etc/cni/net.d",
		CNIBinDir:      "/opt/cni/bin",
		CNIDataDir:     "/var/lib/cni/networks/edgemesh",
		CNIMode:        CNIOwn,
		Discovery:      Discovery{MDNS: true, PortMapping: true},
		Punch:          Punch{Guess: GuessAuto},
		Uplink:         Uplink{Metered: MeteredAuto},
		LAN:            LAN{Native: true, VXLAN: true, VXLANPort: mesh.VXLANPort},
		Membership:     Membership{File: "/etc/edgemesh/cluster.yaml"},
		MetricsAddress: "127.0.0.1:9469",
		MetricsUnset:   true,
	}
	got, err := load(path, "", hostNamed("Edge-7.example.org"))
	if !got.HostNamed {
		t.Error("not said to be the host's name")
	}
	got.HostNamed, got.path, got.data = false, "", nil
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := load(path, "from-env", hostNamed("x")); err != nil || got.NodeName != "from-env" {
		t.Errorf("node name %q, %v; want $NODE_NAME's", got.NodeName, err)
	}
}

func TestLoadEverything(t *testing.T) {
	path := write(t, `nodeName: edge-1
stateDir: /s/
runtimeDir: /r
cniConfDir: ""
cniBinDir: /bin/../cni
cniDataDir: /d/
cniMode: keep
cni:
  keepFor: 72h
  keepOnly: statefulset
  exclude: [10.244.1.9, 10.244.1.128/25, "fd00::5-fd00::9"]
  promiscMode: true
  allowSpoofing: true
  chained: [{type: portmap}, {type: bandwidth, ingressRate: 1000000}, {type: tuning, sysctl: {net.core.somaxconn: "512"}}]
lan: {native: false, vxlan: true, vxlanPort: 4790}
membership: {file: /m.yaml}
listen: [/ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/udp/4001/quic-v1, "/ip6/::1/tcp/4002"]
metricsAddress: ""
tunQueues: 3
relay: {enabled: true, announce: [/ip4/5.5.5.5], limits: {maxCircuits: 7}}
discovery: {mdns: false}
punch: {guess: never}
`)
	want := Config{
		TUNQueues: 3,
		Discovery: Discovery{MDNS: false, PortMapping: true},
		Punch:     Punch{Guess: GuessNever},
		Uplink:    Uplink{Metered: MeteredAuto},
		Relay: Relay{
			Enabled: true,
			Announce: []ma.Multiaddr{
				ma.StringCast("/ip4/5.5.5.5/tcp/4001"), ma.StringCast("/ip4/5.5.5.5/tcp/4002"),
				ma.StringCast("/ip4/5.5.5.5/udp/4001/quic-v1"),
			},
			Limits: RelayLimits{
				MaxReservations: 16384, MaxReservationsPerIP: 16384, MaxCircuits: 7, MaxCircuitsPerPeer: 7, BufferSize: 16384,
			},
		},
		NodeName:   "edge-1",
		StateDir:   "/s",
		RuntimeDir: "/r",
		CNIConfDir: "",
		CNIBinDir:  "/cni",
		CNIDataDir: "/d",
		CNIMode:    CNIKeep,
		LAN:        LAN{VXLAN: true, VXLANPort: 4790},
		Membership: Membership{File: "/m.yaml"},
		CNI: CNI{
			KeepFor: "72h", KeepOnly: "statefulset", PromiscMode: true, AllowSpoofing: true,
			Exclude: []string{"10.244.1.9", "10.244.1.128/25", "fd00::5-fd00::9"},
			Chained: []map[string]any{
				{"type": "portmap"},
				{"type": "bandwidth", "ingressRate": 1e6},
				{"type": "tuning", "sysctl": map[string]any{"net.core.somaxconn": "512"}},
			},
		},
		Listen: []ma.Multiaddr{
			ma.StringCast("/ip4/0.0.0.0/tcp/4001"), ma.StringCast("/ip4/0.0.0.0/udp/4001/quic-v1"), ma.StringCast("/ip6/::1/tcp/4002"),
		},
	}
	got, err := load(path, "from-env", hostNamed("x"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", "mode: fast", "mode: unknown field"},
		{"VXLAN port", "membership: {file: /m}\nlan: {vxlanPort: 70000}", `lan.vxlanPort: 70000 is not a UDP port`},
		{"LAN key", "membership: {file: /m}\nlan: {nativ: false}", `lan.nativ: `},
		{"CNI mode", "membership: {file: /m}\ncniMode: replace", `cniMode: "replace" is neither "own" nor "keep"`},
		{"keepFor", "cni: {keepFor: 3}", "cni.keepFor: must be a string"},
		{"keepFor value", "cni: {keepFor: -1h}", `cni.keepFor: "-1h" is not a positive duration`},
		{"keepOnly", "cni: {keepOnly: ALL}", `cni.keepOnly: "ALL" is not one of all, statefulset, none`},
		{"exclude", "cni: {exclude: [10.1.1.1, 10.1.1.9-10.1.1.1]}", `cni.exclude[1]: "10.1.1.9-10.1.1.1" is not`},
		{"unknown CNI option", "cni: {keep: all}", "cni.keep: unknown field"},
		{"chained by name", "cni: {chained: [bandwidth]}", "cni.chained[0]: must be a mapping"},
		{"chained without type", "cni: {chained: [{type: tuning}, {capabilities: {}}]}", "cni.chained[1].type: missing"},
		{"chained path", "cni: {chained: [{type: ../x}]}", `cni.chained[0].type: "../x" is not the name`},
		{"chained ourselves", "cni: {chained: [{type: edgemesh-cni}]}", "cni.chained[0].type: edgemesh-cni is always called first"},
		{"chained version", "cni: {chained: [{type: tuning, cniVersion: 0.4.0}]}", "cni.chained[0].cniVersion: is not"},
		{"no membership", "nodeName: a", "membership.file: missing"},
		{"two memberships", "membership: {file: /m, kubernetes: {}}", "membership: both file and kubernetes"},
		{"relative kubeconfig", "membership: {kubernetes: {kubeconfig: k}}", `membership.kubernetes.kubeconfig: "k" is not an absolute path`},
		{"kubernetes server", "membership: {kubernetes: {server: 'a:6443'}}", `membership.kubernetes.server: "a:6443" is not a URL`},
		{"rubbish for a signer", "signers: [key]", `signers[0]: "key" is not a key`},
		{"a signer twice", "signers: [12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m, 12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m]", "signers[1]: the same key as signers[0]"},
		{"user of a cache", "membership: {kubernetes: {localUID: -1}}", "membership.kubernetes.localUID"},
		{"unknown kubernetes field", "membership: {kubernetes: {host: a}}", "membership.kubernetes.host: unknown field"},
		{"relative membership", "membership: {file: m.yaml}", `membership.file: "m.yaml" is not an absolute path`},
		{"node name", "nodeName: Edge_1", "nodeName: "},
		{"relay's limit", "relay: {enabled: true, limits: {maxCircuits: 0}}", "relay.limits.maxCircuits: 0 is not between"},
		{"relay's address", "listen: [/ip4/0.0.0.0/tcp/4001]\nrelay: {enabled: true, announce: [5.5.5.5]}", `relay.announce[0]: "5.5.5.5" is not a multiaddr`},
		{"relay's address without a port", "relay: {enabled: true, announce: [/ip4/5.5.5.5]}", "relay.announce: needs listen"},
		{"discovery as text", "discovery: {mdns: maybe}", "discovery.mdns: "},
		{"unknown relay field", "relay: {mode: x}", "relay.mode: unknown field"},
		{"relative dir", "stateDir: lib", `stateDir: "lib" is not an absolute path`},
		{"empty dir", `runtimeDir: ""`, "runtimeDir: empty"},
		{"root dir", "stateDir: /", "stateDir: is the root directory"},
		{"relative cni dir", "cniBinDir: bin", "cniBinDir: "},
		{"same dirs", "stateDir: /d\nruntimeDir: /d/", "runtimeDir: /d is also the stateDir"},
		{"long dir", "runtimeDir: /" + strings.Repeat("d", 100), "runtimeDir: "},
		{"listen text", "listen: [0.0.0.0:4001]", `listen[0]: "0.0.0.0:4001" is not a multiaddr`},
		{"listen kind", "listen: [/ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/udp/4001]", "listen[1]: "},
		{"listen name", "listen: [/dns4/a/tcp/4001]", "listen[0]: "},
		{"listen circuit", "listen: [/p2p-circuit]", "listen[0]: "},
		{"listen twice", "listen: [/ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/tcp/4001]", "listen[1]: the same address as listen[0]"},
		{"birthday", "punch: {birthday: 3}", "punch.birthday"},
		{"guess", "punch: {guess: sometimes}", "punch.guess"},
		{"guess as a switch", "punch: {guess: false}", "punch.guess"},
		{"unknown punch", "punch: {luck: true}", "punch.luck"},
		{"queues", "tunQueues: 9", "tunQueues: 9 is not between 0 and 8"},
		{"no queues", "tunQueues: -1", "tunQueues: -1 is not between"},
		{"metrics", "metricsAddress: localhost", "metricsAddress: "},
		{"metrics port", "metricsAddress: localhost:99999", "metricsAddress: "},
		{"metrics host", "metricsAddress: example.org:80", "metricsAddress: "},
		{"metrics in the mesh", "metricsAddress: mesh", "metricsAddress: "},
		{"a list", "- a", "must be a mapping"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := c.text
			if !strings.Contains(text, "membership") && c.name != "no membership" && c.name != "a list" {
				text += "\nmembership: {file: /m.yaml}\n"
			}
			path := write(t, text)
			_, err := load(path, "", hostNamed("h"))
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

func TestLoadKubernetes(t *testing.T) {
	for text, want := range map[string]Kubernetes{
		"{}": {},
		"{kubeconfig: /k, server: 'https://10.0.0.1:6443'}": {Kubeconfig: "/k", Server: "https://10.0.0.1:6443"},
		"{server: 'http://127.0.0.1:10550', localUID: 990}": {Server: "http://127.0.0.1:10550", LocalUID: 990},
	} {
		c, err := load(write(t, "membership: {kubernetes: "+text+"}\n"), "", hostNamed("h"))
		if err != nil || c.Membership.File != "" || c.Membership.Kubernetes == nil || *c.Membership.Kubernetes != want {
			t.Errorf("%s: %+v, %v", text, c.Membership, err)
		}
	}
}

func TestLoadWithoutHostName(t *testing.T) {
	path := write(t, "membership: {file: /m.yaml}\n")
	for _, host := range []func() (string, error){func() (string, error) { return "", errors.New("no name") }, hostNamed("My_Host")} {
		got, err := load(path, "", host)
		if err != nil || got.NodeName != "" || !got.HostNamed {
			t.Errorf("%q, %v: a node may be known by its key", got.NodeName, err)
		}
		if got, err = got.As("edge-1"); err != nil || got.NodeName != "edge-1" || got.HostNamed || got.Membership.File != "/m.yaml" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	_, err := load(path, "My_Host", nil)
	if err == nil || !strings.Contains(err.Error(), "(from $NODE_NAME)") {
		t.Errorf("error %v does not say where the name is from", err)
	}
}

func TestLoadUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want fs.ErrNotExist with the path", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path+": not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestResolveListen(t *testing.T) {
	dir := t.TempDir()
	c := Config{StateDir: dir}
	if err := c.ResolveListen(); err != nil {
		t.Fatal(err)
	}
	port, err := c.Listen[0].ValueForProtocol(ma.P_TCP)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Listen {
		if !strings.Contains(m.String(), "/"+port) {
			t.Errorf("%s is not on port %s", m, port)
		}
	}
	again := Config{StateDir: dir}
	if err := again.ResolveListen(); err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("second start: %v, %v; want %v", again.Listen, err, c.Listen)
	}
	other := Config{StateDir: dir, Listen: []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/1")}}
	if err := other.ResolveListen(); err != nil || len(other.Listen) != 1 {
		t.Errorf("a configured address was replaced: %v, %v", other.Listen, err)
	}
	// Torn by a power cut: another port, kept from then on.
	if err := os.WriteFile(filepath.Join(dir, PortFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	torn := Config{StateDir: dir}
	if err := torn.ResolveListen(); err != nil || len(torn.Listen) == 0 {
		t.Errorf("torn port file: %v, %v", torn.Listen, err)
	}
	// On a full disk a port for this start, and the reason why it is not kept.
	full := Config{StateDir: t.TempDir()}
	disktest.Fill(t, full.StateDir)
	if err := full.ResolveListen(); !errors.Is(err, unix.ENOSPC) || len(full.Listen) == 0 {
		t.Errorf("full disk: %v, %v", full.Listen, err)
	}
}

// The stable port may be in use by ourselves, an agent that is just ending:
// it is kept all the same.
func TestStablePortIsKeptWhileInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := l.Addr().(*net.TCPAddr).Port
	path := filepath.Join(t.TempDir(), PortFile)
	if err := os.WriteFile(path, fmt.Appendln(nil, want), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := stablePort(path); err != nil || got != want {
		t.Errorf("port %d, %v; want %d", got, err, want)
	}
}

func TestStablePortErrors(t *testing.T) {
	if _, err := stablePort(filepath.Join(t.TempDir(), "none", PortFile)); !errors.Is(err, ErrPort) {
		t.Errorf("error %v, want ErrPort", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("membership: {file: /m.yaml}\nlisten: [/ip4/0.0.0.0/tcp/4001]\nmetricsAddress: 127.0.0.1:1\n")
	f.Add("stateDir: /\x00\nmembership: {kubernetes: {}}")
	f.Fuzz(func(t *testing.T, text string) {
		path := write(t, text)
		c, err := load(path, "env", hostNamed("h"))
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Fatalf("error without the path: %v", err)
			}
			return
		}
		if !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.RuntimeDir) || (c.Membership.Kubernetes == nil && !filepath.IsAbs(c.Membership.File)) || mesh.CheckNodeName(c.NodeName) != nil {
			t.Fatalf("accepted %+v", c)
		}
	})
}
