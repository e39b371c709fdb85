package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"edgemesh/test/tier"
)

// They make images, from Debian packages.
var _ = tier.Package(tier.OfAll)

// limits of the compressed images and of the agent's stripped binary, in bytes: an edge pulls them over 4G. They were 15, 9
// and 30 MB until client-go's rest and clientcmd (2.4 MB) came in, 33 until cilium/ebpf's loader did (0.7), and 33.6
// until findings, the watchdog with go-systemd and the look-ups of names by family did (0.15 together), the count of upkeep
// with metered uplinks (0.08), and NAT64 with probes of each IP version, signed memberships, key changes of TCP connections,
// dials from each own address, and libcni, which reads files of the CNI as runtimes do (0.8 together), and calls of chained plugins
// through libcni, starts without the key, and captive portals (0.15), and policy rules that follow others', what may not leave, and pods of one node
// behind the firewall (0.1, and with these the image 16.05 MB, which was 16 at most), conntrack entries that are deleted (0.05), NetworkPolicy in the kernel and from a file (0.4), from the API and clones that are noticed (0.35, and with these the image 16.4 MB), what other programs set on interfaces (0.05), sealed packets that relays forward (0.08), dials of circuits with the steps of first contacts (0.06), and a table of policies that belongs to the agent, rules of hostPorts in containers and announced ends of paths (0.06), and which end drops UDP or is down, and whether a LAN keeps its hosts apart (0.03), and hosts that forward between their own pods, and directories that are replaced (0.03, and with these the image 16.51 MB), and client-go 0.37, which follows a CA in its file (0.08), and UDP conversations that are cut (0.01, and with these the image 16.6 MB), and sealed packets with repair (0.22, and with these the image 16.64 MB), and ports of policies that nobody has, and what is closed at a first start (0.04), and the choice between carriers (0.03, and with these the image 16.7 MB), and one memory for all peers' sealed packets (0.02), and without ClusterNetworkPolicies and the controller's map 0.17 less; another library or capability that moves them is named here.
const (
	agentLimit  = 16_645_000
	relayLimit  = 10_000_000
	binaryLimit = 36_780_000
)

// built is one build of this machine's architecture.
type built struct {
	dir     string
	digests string
}

func build(t *testing.T) built {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("NOT TESTED: images are made from Debian packages, and there is no mmdebstrap")
	}
	dir := t.TempDir()
	o, err := parse([]string{"--out", dir, "--repo", "../..", "--arch", runtime.GOARCH, "--tag", "test", "--version", "v0.0.0-test", "--commit", "c0ffee"})
	if err != nil {
		t.Fatal(err)
	}
	o.created = time.Unix(1_700_000_000, 0).UTC()
	if err := run(t.Context(), o, io.Discard, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		t.Fatal(err)
	}
	digests, err := os.ReadFile(filepath.Join(dir, "DIGESTS"))
	if err != nil {
		t.Fatal(err)
	}
	return built{dir, string(digests)}
}

func TestImages(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skipf("NOT TESTED on %s", runtime.GOARCH)
	}
	first := build(t)
	t.Run("two builds are equal", func(t *testing.T) {
		if second := build(t); second.digests != first.digests || second.digests == "" {
			t.Errorf("first build:\n%ssecond build:\n%s", first.digests, second.digests)
		}
	})
	agent := open(t, filepath.Join(first.dir, "edgemesh-agent-linux-"+runtime.GOARCH+".tar"), "localhost/edgemesh-agent:test")
	relay := open(t, filepath.Join(first.dir, "edgemesh-relay-linux-"+runtime.GOARCH+".tar"), "localhost/edgemesh-relay:test")
	t.Run("sizes", func(t *testing.T) {
		t.Logf("agent %d bytes, relay %d", agent.size, relay.size)
		if agent.size > agentLimit || relay.size > relayLimit {
			t.Errorf("agent %d bytes (limit %d), relay %d (limit %d)", agent.size, agentLimit, relay.size, relayLimit)
		}
		binary := len(agent.files[binDir+"/edgemesh-agent"].data)
		if t.Logf("agent's binary %d bytes", binary); binary == 0 || binary > binaryLimit {
			t.Errorf("agent's binary %d bytes (limit %d)", binary, binaryLimit)
		}
	})
	t.Run("the relay's has its binary, certificates and nothing that runs", func(t *testing.T) {
		for name := range relay.files {
			switch {
			case name == "usr/local/bin/edgemesh-relay", name == "etc/ssl/certs/ca-certificates.crt", path.Base(name) == "copyright":
			default:
				t.Errorf("unexpected: %s", name)
			}
		}
		if relay.config.Config.Entrypoint[0] != "/usr/local/bin/edgemesh-relay" || len(relay.files["usr/local/bin/edgemesh-relay"].data) == 0 {
			t.Errorf("the entry point is %q", relay.config.Config.Entrypoint)
		}
		if relay.config.Config.User != nobody || agent.config.Config.User != "" {
			t.Errorf("the relay runs as %q, the agent as %q, want %q and root", relay.config.Config.User, agent.config.Config.User, nobody)
		}
		if !bytes.Contains(relay.files["etc/ssl/certs/ca-certificates.crt"].data, []byte("-----BEGIN CERTIFICATE-----")) {
			t.Error("no certificates")
		}
	})
	t.Run("the agent's runs what the agent calls", func(t *testing.T) { agent.try(t) })
	t.Run("containerd unpacks both", func(t *testing.T) {
		imported(t, first.dir, map[string]opened{"edgemesh-agent": agent, "edgemesh-relay": relay})
	})
}

// try runs the programs of the image in it.
func (img opened) try(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: chroot needs root")
	}
	for _, sh := range []string{"bin/sh", "usr/bin/sh", "usr/bin/dash", "bin/dash"} {
		if _, there := img.files[sh]; there {
			t.Errorf("the image has %s", sh)
		}
	}
	root := t.TempDir()
	for name, e := range img.files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(file, e.data, e.mode)
		if e.link != "" {
			err = errors.Join(os.Remove(file), os.Symlink(e.link, file))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ command, want string }{
		{"iptables", "(nf_tables)"}, {"iptables-nft", "(nf_tables)"}, {"iptables-legacy", "(legacy)"},
		{"ip6tables", "(nf_tables)"}, {"ip6tables-nft-save", "(nf_tables)"}, {"ip6tables-legacy-save", "(legacy)"},
		{"iptables-save", "(nf_tables)"}, {"iptables-legacy-restore", "(legacy)"},
	} {
		out, err := exec.Command("/usr/sbin/chroot", root, "/usr/sbin/"+c.command, "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s --version: %v: %s (want %s)", c.command, err, out, c.want)
		}
	}
	// The extensions that our rules need are loaded by name.
	for _, match := range []string{"conntrack", "mark", "comment", "addrtype"} {
		out, err := exec.Command("/usr/sbin/chroot", root, "/usr/sbin/iptables-nft", "-m", match, "--help").CombinedOutput()
		if err != nil || !strings.Contains(string(out), " match options") {
			t.Errorf("iptables -m %s: %v: %.200s", match, err, out)
		}
	}
	if l := img.config.Config.Labels; l["org.opencontainers.image.version"] != "v0.0.0-test" || l["org.opencontainers.image.revision"] != "c0ffee" {
		t.Errorf("labels %v are not the program's", l)
	}
	out, err := exec.Command("/usr/sbin/chroot", root, "/"+binDir+"/edgemesh-agent", "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "v0.0.0-test\ncommit: c0ffee\ndate: 2023-11-14T22:13:20Z\n") {
		t.Errorf("edgemesh-agent version: %v: %s", err, out)
	}
	if _, beside := img.files[binDir+"/edgemesh-cni"]; !beside {
		t.Error("edgemesh-cni is not beside the agent")
	}
}

// opened is an archive read back as the specification says, digests checked.
type opened struct {
	config v1.ConfigFile
	files  tree
	size   int // of config and layers, compressed
}

func open(t *testing.T, file, ref string) opened {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// POSIX pax: whole blocks of 512 bytes, the last two of zeros. Go's reader does
	// not insist, others do.
	if len(data)%512 != 0 || !bytes.HasSuffix(data, make([]byte, 1024)) {
		t.Errorf("%s is cut off", file)
	}
	content := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	get := func(d v1.Descriptor, v any) []byte {
		t.Helper()
		b := content["blobs/sha256/"+d.Digest.Hex]
		if fmt.Sprintf("sha256:%x", sha256.Sum256(b)) != d.Digest.String() || len(b) != int(d.Size) {
			t.Fatalf("%s: %s is not what its descriptor says", file, d.Digest)
		}
		if v != nil {
			if err := json.Unmarshal(b, v); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	var top v1.IndexManifest
	if err := json.Unmarshal(content["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %v: %s", err, content["index.json"])
	}
	if n := top.Manifests[0].Annotations["io.containerd.image.name"]; n != ref {
		t.Errorf("%s is named %q, want %q", file, n, ref)
	}
	var m v1.Manifest
	get(top.Manifests[0], &m)
	img := opened{files: tree{}, size: int(m.Config.Size)}
	get(m.Config, &img.config)
	if img.config.Architecture != runtime.GOARCH || len(img.config.RootFS.DiffIDs) != len(m.Layers) {
		t.Fatalf("%s: config %+v does not fit its manifest", file, img.config)
	}
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(window))
	if err != nil {
		t.Fatal(err)
	}
	defer unzip.Close()
	for i, d := range m.Layers {
		img.size += int(d.Size)
		if d.MediaType != "application/vnd.oci.image.layer.v1.tar+zstd" {
			t.Fatalf("%s: layer %d is %s", file, i, d.MediaType)
		}
		plain, err := unzip.DecodeAll(get(d, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprintf("sha256:%x", sha256.Sum256(plain)) != img.config.RootFS.DiffIDs[i].String() {
			t.Errorf("%s: diff_ids[%d] is not the layer's", file, i)
		}
		ordered(t, plain)
		if err := img.files.read(bytes.NewReader(plain)); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// ordered: a layer's entries are owned by root, dated 1970, and in order.
func ordered(t *testing.T, plain []byte) {
	t.Helper()
	var last *tar.Header
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: owner %d:%d, time %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		if last != nil && order(last, h) >= 0 {
			t.Errorf("%s (%d bytes) is after %s (%d bytes)", h.Name, h.Size, last.Name, last.Size)
		}
		last = h
	}
}

// order is that of a layer: directories by name, then the others by size and name.
func order(a, b *tar.Header) int {
	others := func(h *tar.Header) int {
		if h.Typeflag == tar.TypeDir {
			return 0
		}
		return 1
	}
	return cmp.Or(others(a)-others(b), cmp.Compare(a.Size, b.Size), strings.Compare(clean(a.Name), clean(b.Name)))
}

// An archive for several platforms has an index of all of them.
func TestIndex(t *testing.T) {
	img := &image{name: "x"}
	o := options{registry: "localhost", tag: "1"}
	for _, a := range knownArches {
		if err := img.add(a, []tree{{"usr/local/bin/x": {data: []byte(a.String()), mode: 0o755}}}, o); err != nil {
			t.Fatal(err)
		}
	}
	data, digest, err := archive(img.reference(o), img.platforms)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := archive(img.reference(o), img.platforms)
	if err != nil || !bytes.Equal(data, again) {
		t.Errorf("a second archive of the same is another one (%v)", err)
	}
	var list v1.IndexManifest
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("no index %s: %v", digest, err)
		}
		if h.Name == "blobs/sha256/"+digest.Hex {
			if err := json.NewDecoder(r).Decode(&list); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	var got []string
	for _, m := range list.Manifests {
		got = append(got, m.Platform.String())
	}
	if want := []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v7"}; !slices.Equal(got, want) {
		t.Errorf("platforms %v, want %v", got, want)
	}
}

// A library that no package has must not be found out on a node.
func TestClosureMissesNothing(t *testing.T) {
	self, err := exec.LookPath("dpkg-deb") // an ELF file with libraries
	if err != nil {
		t.Skip("NOT TESTED: no dynamic program at hand")
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	all := tree{}
	for _, p := range tools {
		all[p] = entry{data: data, mode: 0o755}
	}
	if _, err := all.closure(); err == nil {
		t.Fatal("programs without their libraries are accepted")
	}
	delete(all, tools[0])
	if _, err := all.closure(); err == nil || !strings.Contains(err.Error(), "no package has") {
		t.Errorf("a program is missing: %v", err)
	}
}

func TestParseLock(t *testing.T) {
	sum := strings.Repeat("0a", sha256.Size)
	got, err := parseLock([]byte("# words\n\namd64 iptables 1.8.11-2 " + sum + "\n"))
	if err != nil || !slices.Equal(got, []locked{{"amd64", "iptables", "1.8.11-2", sum}}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"amd64 iptables 1.8.11-2", "amd64 iptables 1.8.11-2 beef"} {
		if _, err := parseLock([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// The lock has the same packages for every architecture.
func TestLockIsComplete(t *testing.T) {
	data, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := parseLock(data)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string][]string{}
	for _, e := range entries {
		have[e.arch] = append(have[e.arch], e.name)
	}
	for _, a := range knownArches {
		if names := have[a.debian]; !slices.Equal(names, have["amd64"]) || !slices.IsSorted(names) || !slices.Contains(names, "libc6") {
			t.Errorf("%s: %v, want sorted and like amd64: %v", a.debian, names, have["amd64"])
		}
	}
	if len(have) != len(knownArches) {
		t.Errorf("architectures %v", slices.Collect(maps.Keys(have)))
	}
}
