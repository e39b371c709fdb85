package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/nat64"
	"edgemesh/internal/proxy"
)

// Check adds to bad unless there is exactly one source.
func (m Membership) Check(bad *mesh.Invalid) {
	switch {
	case m.File != "" && m.Kubernetes != nil:
		bad.Addf("membership", "both file and kubernetes are set; remove one")
	case m.Kubernetes != nil:
		m.Kubernetes.check(bad)
	case m.File == "":
		bad.Addf("membership.file", "missing; set it to the path of cluster.yaml, or set membership.kubernetes to {}")
	case !filepath.IsAbs(m.File):
		bad.Addf("membership.file", "%q is not an absolute path", m.File)
	}
}

// None says whether no source is configured.
func (m Membership) None() bool { return m.File == "" && m.Kubernetes == nil }

// SecretFile checks the path of a file with a secret; "" means none.
func SecretFile(bad *mesh.Invalid, field, path string) string {
	if path != "" && !filepath.IsAbs(path) {
		bad.Addf(field, "%q is not an absolute path", path)
	}
	return path
}

// checkProxy checks the keys proxy and proxyCredentials.
func (c Config) checkProxy(bad *mesh.Invalid) {
	SecretFile(bad, "proxyCredentials", c.ProxyUser)
	if c.Proxy == "" || c.Proxy == proxy.None {
		if c.Proxy == proxy.None && c.ProxyUser != "" {
			bad.Addf("proxyCredentials", "set, but proxy is %q; remove one", proxy.None)
		}
		return
	}
	u, err := proxy.Parse(c.Proxy)
	switch {
	case err != nil:
		bad.Addf("proxy", "%v; leave it out for what HTTPS_PROXY says, or write %q", err, proxy.None)
	case u.User != nil:
		bad.Addf("proxy", "%s has a password, and everybody may read this file; write user:password to a file and name it with proxyCredentials", u.Redacted())
	}
}

func (k Kubernetes) check(bad *mesh.Invalid) {
	if k.Kubeconfig != "" && !filepath.IsAbs(k.Kubeconfig) {
		bad.Addf("membership.kubernetes.kubeconfig", "%q is not an absolute path", k.Kubeconfig)
	}
	for _, f := range [][2]string{{"nodeCertificate", k.NodeCertificate}, {"nodeKey", k.NodeKey}} {
		if f[1] != "" && !filepath.IsAbs(f[1]) {
			bad.Addf("membership.kubernetes."+f[0], "%q is not an absolute path", f[1])
		}
	}
	if k.NodeKey != "" && k.NodeCertificate == "" {
		bad.Addf("membership.kubernetes.nodeKey", "set without nodeCertificate; set both")
	}
	if k.LocalUID < 0 || int64(k.LocalUID) >= math.MaxUint32 {
		bad.Addf("membership.kubernetes.localUID", "%d is not a user's number; write that of the user who runs the node's API cache, or leave it out for root", k.LocalUID)
	}
	if k.Server == "" {
		return
	}
	if u, err := url.Parse(k.Server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		bad.Addf("membership.kubernetes.server", "%q is not a URL like https://10.0.0.1:6443", k.Server)
	}
}

// Dir checks a directory that must be set. It need not exist.
func Dir(bad *mesh.Invalid, field, written, byDefault string) string {
	if written == "" {
		bad.Addf(field, "empty; leave it out for the default %s", byDefault)
	}
	return optionalDir(bad, field, written)
}

func optionalDir(bad *mesh.Invalid, field, written string) string {
	if written == "" {
		return ""
	}
	dir := filepath.Clean(written)
	switch {
	case !filepath.IsAbs(dir):
		bad.Addf(field, "%q is not an absolute path", written)
	case dir == "/":
		bad.Addf(field, "is the root directory; choose a directory of its own")
	}
	return dir
}

// HostPort checks an address to listen on; "" means off.
func HostPort(bad *mesh.Invalid, field, written, byDefault string) string {
	if written == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(written)
	if err != nil {
		bad.Addf(field, "%q is not HOST:PORT like %s (\"\" turns it off)", written, byDefault)
		return ""
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		bad.Addf(field, "%q has no port between 0 and 65535", written)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" && host != endpoint.Mesh {
		bad.Addf(field, "%q: host must be an IP address, localhost, or mesh for this node's mesh addresses and 127.0.0.1", written)
	}
	return written
}

// Listen checks addresses of the form /ip4|ip6/ADDR/tcp/PORT and
// /ip4|ip6/ADDR/udp/PORT/quic-v1. A relay may also listen for WebSocket (ws):
// /ip4|ip6/ADDR/tcp/PORT/ws.
func Listen(bad *mesh.Invalid, field string, list []string, ws bool) []ma.Multiaddr {
	forms := "/ip4|ip6/ADDRESS/tcp/PORT or /ip4|ip6/ADDRESS/udp/PORT/quic-v1"
	if ws {
		forms = "/ip4|ip6/ADDRESS/tcp/PORT, /ip4|ip6/ADDRESS/udp/PORT/quic-v1 or /ip4|ip6/ADDRESS/tcp/PORT/ws"
	}
	var out []ma.Multiaddr
	seen := make(map[string]int)
	for i, text := range list {
		f := fmt.Sprintf("%s[%d]", field, i)
		m, err := ma.NewMultiaddr(text)
		if err != nil {
			bad.Addf(f, "%q is not a multiaddr like /ip4/0.0.0.0/tcp/4001: %v", text, err)
			continue
		}
		if !listenable(m, ws) {
			bad.Addf(f, "%q does not have the form %s", text, forms)
			continue
		}
		if j, dup := seen[m.String()]; dup {
			bad.Addf(f, "the same address as %s[%d]; remove one", field, j)
			continue
		}
		seen[m.String()] = i
		out = append(out, m)
	}
	return out
}

func listenable(m ma.Multiaddr, ws bool) bool {
	p := m.Protocols()
	if len(p) < 2 || p[0].Code != ma.P_IP4 && p[0].Code != ma.P_IP6 {
		return false
	}
	switch p[1].Code {
	case ma.P_TCP:
		return len(p) == 2 || ws && len(p) == 3 && p[2].Code == ma.P_WS
	case ma.P_UDP:
		return len(p) == 3 && p[2].Code == ma.P_QUIC_V1
	}
	return false
}

// Signers checks the keys whose signed membership alone counts.
func Signers(bad *mesh.Invalid, list []string) (out []peer.ID) {
	for i, text := range list {
		id, err := signed.ParseSigner(text)
		switch field := fmt.Sprintf("signers[%d]", i); {
		case err != nil:
			bad.Addf(field, "%v", err)
		case slices.Contains(out, id):
			bad.Addf(field, "the same key as signers[%d]; remove one", slices.Index(out, id))
		default:
			out = append(out, id)
		}
	}
	return out
}

// KeyError says what is wrong with the value of one key, as found when it was used.
type KeyError struct {
	Key string // as written in the file, or a flag
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// MakeDir creates a directory that will be written to, and its parents. The error is a
// *KeyError that names the remedy.
func MakeDir(key, dir string, mode os.FileMode) error {
	if dir == "" {
		return &KeyError{key, errors.New("is empty; choose another directory, or leave it out for the default")}
	}
	err := os.MkdirAll(dir, mode)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
		if err == nil {
			return nil
		}
		err = &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	remedy := "choose another directory"
	switch {
	case errors.Is(err, unix.EROFS):
		remedy = "mount it writable, or choose another directory; for the systemd unit run `edgemesh-agent install` again, or add it to ReadWritePaths="
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST):
		remedy = "a file is in the way: remove it, or choose another directory"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "free some space, or choose another directory"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run as root, or choose another directory that this user may write to"
	}
	return &KeyError{key, fmt.Errorf("%w; %s", err, remedy)}
}

// OutsideOf checks that no address of list is inside the cluster's ranges: a
// connection there would run inside the tunnel that it is meant to carry. The error is
// a *KeyError.
func OutsideOf(ranges []netip.Prefix, key string, list []ma.Multiaddr) error {
	for i, a := range list {
		ip, err := manet.ToIP(a)
		if err != nil {
			continue // a name
		}
		addr, _ := netip.AddrFromSlice(ip)
		for _, r := range ranges {
			if r.Contains(nat64.Inside(addr)) {
				return &KeyError{fmt.Sprintf("%s[%d]", key, i),
					fmt.Errorf("%s is inside the cluster's range %s (podCIDRs); use an address of this host that is reachable without the pod network", a, r)}
			}
		}
	}
	return nil
}
