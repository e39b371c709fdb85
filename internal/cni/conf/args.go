package conf

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PodArgs is what a Kubernetes runtime says about the pod in CNI_ARGS. All fields are
// empty with other callers.
type PodArgs struct {
	Namespace string // K8S_POD_NAMESPACE
	Name      string // K8S_POD_NAME
	UID       string // K8S_POD_UID
}

// parseArgs reads CNI_ARGS, KEY=VALUE pairs separated by ";". Unknown keys
// are ignored: runtimes add their own, with IgnoreUnknown=1 or without. Errors
// wrap ErrArgs.
func parseArgs(s string) (pod PodArgs, ips []string, err error) {
	for _, kv := range strings.Split(s, ";") {
		if kv == "" {
			continue
		}
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return pod, nil, fmt.Errorf("%w: CNI_ARGS: %q is not KEY=VALUE", ErrArgs, kv)
		}
		switch k {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = v
		case "K8S_POD_NAME":
			pod.Name = v
		case "K8S_POD_UID":
			pod.UID = v
		case "IP":
			if v != "" {
				ips = strings.Split(v, ",")
			}
		}
	}
	for _, n := range []struct {
		key, v string
		max    int
	}{{"K8S_POD_NAMESPACE", pod.Namespace, 63}, {"K8S_POD_NAME", pod.Name, 253}} {
		if len(n.v) > n.max || !validName(n.v) {
			return pod, nil, fmt.Errorf("%w: CNI_ARGS: %s: %q is not a Kubernetes name", ErrArgs, n.key, n.v)
		}
	}
	if pod.Namespace == "" || pod.Name == "" {
		pod = PodArgs{} // half a name identifies nothing
	}
	return pod, ips, nil
}

// validName refuses what cannot be part of a file name or of JSON. It is less strict
// than Kubernetes, whose names are DNS names.
func validName(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsControl(r)
	})
}

// StatefulSetPod reports whether a pod is named like one of a StatefulSet:
// NAME-ORDINAL. Names of a Deployment's pods end in random letters and digits
// after the hash of their ReplicaSet, so five digits after such a hash are not taken for
// an ordinal.
func StatefulSetPod(pod string) bool {
	set, ordinal, ok := cutLast(pod, "-")
	if !ok || set == "" || ordinal == "" || strings.Trim(ordinal, "0123456789") != "" {
		return false
	}
	if len(ordinal) > 1 && ordinal[0] == '0' {
		return false
	}
	_, hash, ok := cutLast(set, "-")
	deployment := ok && len(ordinal) == 5 && len(hash) >= 8 && len(hash) <= 10 &&
		strings.Trim(hash, "bcdfghjklmnpqrstvwxz2456789") == ""
	return !deployment
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// BridgeMAC is the hardware address of a bridge, derived from its name. An address chosen
// by the kernel changes with the bridge's ports, and pods would lose their gateway each
// time. It never leaves the node, so nodes may share it.
func BridgeMAC(bridge string) net.HardwareAddr {
	return hashMAC([]byte("edgemesh bridge " + bridge))
}

// PodMAC is the hardware address of a pod, derived from one of its addresses, so that
// neighbour caches stay valid when a pod comes back with its address.
// IPv4 addresses are embedded, IPv6 addresses hashed.
func PodMAC(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
	}
	b := a.As16()
	return hashMAC(b[:])
}

// LinkLocal is the link-local address that the kernel derives from mac (RFC 4291, appendix A).
func LinkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// hashMAC is a locally administered unicast address with five hashed bytes. Its 0x0e
// distinguishes it from an embedded address.
func hashMAC(b []byte) net.HardwareAddr {
	h := sha256.Sum256(b)
	return net.HardwareAddr{0x0e, h[0], h[1], h[2], h[3], h[4]}
}
