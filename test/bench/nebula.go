package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"edgemesh/test/lab"
)

const (
	nebulaPort = 4242
	// nebulaMTU fills an underlay packet of 1500 bytes: IPv4, UDP, Nebula's header
	// and the authentication tag take 20 + 8 + 16 + 16.
	nebulaMTU = 1440
)

// nebula is the directory of nebula and nebula-cert.
type nebula struct{ bin string }

// join makes an authority, a certificate with each node's pods in it, and starts
// nebula on both, which know each other's address.
func (n nebula) join(ctx context.Context, l *lab.Lab, a, b *lab.Node) ([]*lab.Process, error) {
	dir := filepath.Join(l.Dir, "nebula")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("nebula: %w", err)
	}
	cert := func(args ...string) error {
		_, err := a.Run(ctx, append([]string{filepath.Join(n.bin, "nebula-cert")}, args...)...)
		return err
	}
	ca := []string{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")}
	if err := cert("ca", "-name", "bench", "-out-crt", ca[0], "-out-key", ca[1]); err != nil {
		return nil, err
	}
	nodes := [2]*lab.Node{a, b}
	var ps []*lab.Process
	for i, node := range nodes {
		peer := nodes[1-i]
		file := func(ext string) string { return filepath.Join(dir, node.Name+ext) }
		if err := cert("sign", "-ca-crt", ca[0], "-ca-key", ca[1], "-name", node.Name, "-networks", nebulaAddr(i)+"/24",
			"-unsafe-networks", node.PodCIDRs[0], "-out-crt", file(".crt"), "-out-key", file(".key")); err != nil {
			return nil, err
		}
		config, err := yaml.Marshal(nebulaConfig(ca[0], file(".crt"), file(".key"), nebulaAddr(1-i), peer))
		if err != nil {
			return nil, fmt.Errorf("nebula: %w", err)
		}
		if err := os.WriteFile(file(".yaml"), config, 0o600); err != nil {
			return nil, fmt.Errorf("nebula: %w", err)
		}
		p, err := node.NS.Start(node.Name, filepath.Join(n.bin, "nebula"), "-config", file(".yaml"))
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// nebulaAddr is the ith node's address in the overlay.
func nebulaAddr(i int) string { return fmt.Sprintf("172.30.0.%d", i+1) }

// nebulaConfig is the usual one (AES, one routine) with the peer's pods behind it.
func nebulaConfig(ca, cert, key, via string, peer *lab.Node) map[string]any {
	anything := []map[string]string{{"port": "any", "proto": "any", "host": "any", "local_cidr": "any"}}
	return map[string]any{
		"pki":             map[string]string{"ca": ca, "cert": cert, "key": key},
		"static_host_map": map[string][]string{via: {fmt.Sprintf("%s:%d", peer.Addr, nebulaPort)}},
		"lighthouse":      map[string]any{"am_lighthouse": false},
		"listen":          map[string]any{"host": "0.0.0.0", "port": nebulaPort},
		"tun": map[string]any{"dev": "nebula1", "mtu": nebulaMTU,
			"unsafe_routes": []map[string]string{{"route": peer.PodCIDRs[0], "via": via}}},
		"firewall": map[string]any{"outbound": anything, "inbound": anything},
	}
}
