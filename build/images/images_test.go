package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
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
// behind the firewall (0.1, and with these the image 16.05 MB, which was 16 at most), conntrack entries that are deleted (0.05), NetworkPolicy in the kernel and from a file (0.4), from the API and clones that are noticed (0.35, and with these the image 16.4 MB), what other programs set on interfaces (0.05), sealed packets that relays forward (0.08), dials of circuits with the steps of first contacts (0.06), and a table of policies that belongs to the agent, rules of hostPorts in containers and announced ends of paths (0.06), and which end drops UDP or is down, and whether a LAN keeps its hosts apart (0.03), and hosts that forward between their own pods, and directories that are replaced (0.03, and with these the image 16.51 MB), and client-go 0.37, which follows a CA in its file (0.08), and UDP conversations that are cut (0.01, and with these the image 16.6 MB), and sealed packets with repair (0.22, and with these the image 16.64 MB), and ports of policies that nobody has, and what is closed at a first start (0.04), and the choice between carriers (0.03, and with these the image 16.7 MB), and one memory for all peers' sealed packets (0.02), and without ClusterNetworkPolicies and the controller's map 0.17 less, and which peers do not answer, and whether an edge's cache was cut off (0.03), and statements that members show and carry to relays, relays that prove their key, and the TUN's hand-over (0.16, and with these the image 16.7 MB), and forwarded probes, and what relays say of themselves (0.1), and traces of the firewall by uplinks, with tc filters, and who rejects probes (0.2, and with these the image 16.8 MB); another library or capability that moves them is named here.
const (
	agentLimit  = 16_880_000
	relayLimit  = 10_000_000
	binaryLimit = 37_350_000
)

// nobody is the relay's user and group, the same as in the chart: it needs no rights on its host.
const nobody = "65532:65532"

// bin is where our programs are in an image; the agent looks for the plugin in its own directory.
const bin = "usr/local/bin"

// script runs one of this directory's, with more in its environment.
func script(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("NOT TESTED: images are made from Debian packages, and there is no mmdebstrap")
	}
	c := exec.CommandContext(t.Context(), name, args...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// built is one build of this machine's architecture.
type built struct {
	dir     string
	digests string
}

func build(t *testing.T) built {
	t.Helper()
	dir := t.TempDir()
	out, err := script(t, []string{"OUT=" + dir, "ARCHES=" + runtime.GOARCH, "TAG=test", "VERSION=v0.0.0-test", "COMMIT=c0ffee", "DATE=2023-11-14T22:13:20Z"}, "./images.sh")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
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
		binary := len(agent.files[bin+"/edgemesh-agent"].data)
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
	out, err := exec.Command("/usr/sbin/chroot", root, "/"+bin+"/edgemesh-agent", "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "edgemesh 0.0.0-test (commit c0ffee)\ncommit: c0ffee\ndate: 2023-11-14T22:13:20Z\n") {
		t.Errorf("edgemesh-agent version: %v: %s", err, out)
	}
	if _, beside := img.files[bin+"/edgemesh-cni"]; !beside {
		t.Error("edgemesh-cni is not beside the agent")
	}
}

// entry is a file or a symbolic link of an image.
type entry struct {
	data []byte
	link string // target; then there is no data
	mode os.FileMode
}

// opened is an archive read back as the specification says, digests checked.
type opened struct {
	config v1.ConfigFile
	files  map[string]entry
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
	img := opened{files: map[string]entry{}, size: int(m.Config.Size)}
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
		unpack(t, plain, img.files)
	}
	return img
}

// unpack adds a layer's entries, which are owned by root and dated 1970.
func unpack(t *testing.T, plain []byte, to map[string]entry) {
	t.Helper()
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
		if h.Typeflag == tar.TypeDir {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		to[path.Clean(h.Name)] = entry{data, h.Linkname, h.FileInfo().Mode()}
	}
}

// Several platforms have an archive each, and one with an index of all of them.
func TestIndex(t *testing.T) {
	dir := t.TempDir()
	var layers []string
	for _, p := range []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v7"} {
		file := filepath.Join(dir, strings.ReplaceAll(p, "/", "-"))
		if err := os.WriteFile(file, []byte(p), 0o644); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, p+"="+file)
	}
	var all [2][]byte
	for i := range all {
		var digests bytes.Buffer
		if err := run(append([]string{"-out", dir, "-name", "localhost/x:1"}, layers...), &digests); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"x-linux-amd64.tar", "x-linux-arm64.tar", "x-linux-arm-v7.tar", "x.tar"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !strings.Contains(digests.String(), "  "+name+"\n") {
				t.Fatalf("%s: %v, digests:\n%s", name, err, digests.String())
			}
			all[i] = append(all[i], data...)
		}
		lines := strings.Split(strings.TrimSpace(digests.String()), "\n")
		digest, _, _ := strings.Cut(lines[len(lines)-1], "  ")
		platforms(t, filepath.Join(dir, "x.tar"), strings.TrimPrefix(digest, "sha256:"))
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("a second archive of the same is another one")
	}
}

// platforms checks those of an index.
func platforms(t *testing.T, file, digest string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("no index %s: %v", digest, err)
		}
		if h.Name != "blobs/sha256/"+digest {
			continue
		}
		var list v1.IndexManifest
		if err := json.NewDecoder(r).Decode(&list); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range list.Manifests {
			got = append(got, m.Platform.String())
		}
		if want := []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v7"}; !slices.Equal(got, want) {
			t.Errorf("platforms %v, want %v", got, want)
		}
		return
	}
}

// TestBase: each ELF file finds its loader and libraries, on every architecture, or a node would find out. The files are of the
// packages of packages.lock, which are the same for every architecture.
func TestBase(t *testing.T) {
	lock, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for line := range strings.Lines(string(lock)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "#" {
			names[f[0]] = append(names[f[0]], f[1])
		}
	}
	for _, arch := range []string{"amd64", "arm64", "armhf"} {
		if !slices.Equal(names[arch], names["amd64"]) || !slices.Contains(names[arch], "libc6") {
			t.Errorf("%s: %v, want the same as amd64: %v", arch, names[arch], names["amd64"])
		}
		dir := filepath.Join(t.TempDir(), arch)
		if out, err := script(t, nil, "./base.sh", arch, dir); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, out)
		}
		libraries, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*/*.so.*"))
		have := map[string]bool{}
		for _, l := range libraries {
			have[filepath.Base(l)] = true
		}
		programs, _ := filepath.Glob(filepath.Join(dir, "usr/sbin/xtables-*-multi"))
		extensions, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*/xtables/*.so"))
		if len(programs) != 2 || len(extensions) < 100 {
			t.Errorf("%s: programs %v, %d extensions", arch, programs, len(extensions))
		}
		for _, file := range slices.Concat(programs, extensions, libraries) {
			f, err := elf.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			needs, err := f.ImportedLibraries()
			if err != nil {
				t.Fatal(err)
			}
			if s := f.Section(".interp"); s != nil {
				loader, err := s.Data()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(filepath.Join(dir, strings.TrimRight(string(loader), "\x00"))); err != nil {
					t.Error(err)
				}
			}
			for _, so := range needs {
				if !have[so] {
					t.Errorf("%s: %s needs %s", arch, filepath.Base(file), so)
				}
			}
			f.Close()
		}
	}
}

// TestPackagesDifferFromTheLock: another digest than the lock's is refused, and so is a version that the mirror has not.
func TestPackagesDifferFromTheLock(t *testing.T) {
	text, err := os.ReadFile("base.sh")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	for want, other := range map[string]string{
		"run `make images-lock` and commit it: amd64 libmnl0": regexp.MustCompile(`(?m)^(amd64 libmnl0 .* )\S+$`).ReplaceAllString(string(lock), "${1}c0ffee"),
		"if a version was not found, Debian has replaced it":  regexp.MustCompile(`(?m)^(amd64 libmnl0) \S+`).ReplaceAllString(string(lock), "$1 0.1-1"),
	} {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "base.sh"), text, 0o755), os.WriteFile(filepath.Join(dir, "packages.lock"), []byte(other), 0o644)); err != nil {
			t.Fatal(err)
		}
		if out, err := script(t, nil, filepath.Join(dir, "base.sh"), "amd64", filepath.Join(dir, "root")); err == nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %q\n%s", err, want, out)
		}
	}
}

// TestMirrorFails: base.sh tries again with locked versions alone without updates and security, and keeps nothing of the first try. A lock is
// of all that the mirror has, or fails.
func TestMirrorFails(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	fake := "#!/bin/sh\necho \"$*\" >>" + dir + "/calls\nif [ -e " + dir + "/failed ]; then tar -cC " + dir + " ./packages; else echo half; : >" + dir + "/failed; exit 1; fi\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte(fake), 0o755), os.WriteFile(filepath.Join(dir, "packages"), lock, 0o644)); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "XDG_CACHE_HOME=" + dir, "MIRROR="}
	for _, x := range []struct {
		args  []string
		calls int
	}{{nil, 1}, {[]string{"amd64", filepath.Join(dir, "root")}, 2}} {
		out, err := script(t, env, "./base.sh", x.args...)
		calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
		if n := strings.Count(string(calls), "--variant"); err == nil || n != x.calls || strings.Contains(string(calls), "security") != (x.calls > 1) {
			t.Errorf("%v: %v, calls:\n%s%s", x.args, err, calls, out)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "calls")), os.Remove(filepath.Join(dir, "failed"))); err != nil {
			t.Fatal(err)
		}
	}
	kept, _ := filepath.Glob(filepath.Join(dir, "edgemesh/images/*"))
	if len(kept) != 1 {
		t.Fatalf("kept: %v", kept)
	}
	if data, err := os.ReadFile(kept[0]); err != nil || bytes.HasPrefix(data, []byte("half")) {
		t.Errorf("%s begins with the first try (%v)", kept[0], err)
	}
}
