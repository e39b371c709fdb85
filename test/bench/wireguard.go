package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"edgemesh/test/lab"
)

const wireGuardPort = 51820

// wireGuard is the program's path.
type wireGuard struct{ program string }

// join starts wireguard-go at both ends. The interfaces carry the lab's
// tag, because their control sockets lie in one directory, /var/run/wireguard.
func (w wireGuard) join(ctx context.Context, l *lab.Lab, a, b *lab.Node) ([]*lab.Process, error) {
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return nil, fmt.Errorf("wireguard key: %w", err)
		}
	}
	nodes := [2]*lab.Node{a, b}
	var ps []*lab.Process
	for i, n := range nodes {
		peer, dev := nodes[1-i], fmt.Sprintf("%s%c", l.Tag, 'a'+i)
		p, err := n.NS.Start(n.Name, w.program, "-f", dev)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
		config := fmt.Sprintf("set=1\nprivate_key=%x\nlisten_port=%d\npublic_key=%x\nendpoint=%s:%d\nallowed_ip=%s\n\n",
			keys[i].Bytes(), wireGuardPort, keys[1-i].PublicKey().Bytes(), peer.Addr, wireGuardPort, peer.PodCIDRs[0])
		if err := configureWireGuard(ctx, p, dev, config); err != nil {
			return nil, err
		}
		if err := n.Script(
			"ip link set "+dev+" up",
			"ip route add "+peer.PodCIDRs[0]+" dev "+dev); err != nil {
			return nil, err
		}
	}
	return ps, nil
}

// configureWireGuard speaks the cross-platform userspace protocol
// (https://www.wireguard.com/xplatform/).
func configureWireGuard(ctx context.Context, p *lab.Process, dev, config string) error {
	return lab.Until(ctx, 20*time.Millisecond, func() error {
		if !p.Running() {
			return fmt.Errorf("wireguard-go ended: %s", p.Tail(5))
		}
		conn, err := net.Dial("unix", filepath.Join("/var/run/wireguard", dev+".sock"))
		if err != nil {
			return fmt.Errorf("configure wireguard-go: %w", err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, config); err != nil {
			return fmt.Errorf("configure wireguard-go: %w", err)
		}
		answer := make([]byte, 256)
		n, err := conn.Read(answer)
		if got := string(answer[:n]); !strings.Contains(got, "errno=0\n") {
			return errors.Join(fmt.Errorf("configure wireguard-go: answer %q", got), err)
		}
		return nil
	})
}
