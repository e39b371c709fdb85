package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"edgemesh/test/lab/link"
)

// linkTime is how long an emulator may take to make its devices.
const linkTime = 10 * time.Second

// Link is an emulated link between a namespace and the WAN. Up is what the
// namespace sends, Down what it gets.
type Link struct {
	link.Client
	Process *Process

	lab          *Lab
	port, bridge string // in the WAN: the namespace's port, and its bridge here
}

// InsertLink puts an emulated link between a node, router, relay or host and the
// WAN it is plugged into. The namespace keeps its interface with everything on it,
// running connections as well; super-segments it sends are split in transit:
//
//	wan0 ── pN ─ lkN (bridge) ─ lkNa ══ emulator ══ lkNb ─ br0 (the WAN)
//
// Equal seeds lose the same frames, counted from the first. The link lives as long
// as the lab unless Remove ends it.
func (l *Lab) InsertLink(ctx context.Context, n *NS, c link.Config, seed uint64) (*Link, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTime)
	defer cancel()
	port, err := l.wanPort(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("link of %s: %w", n.Name, err)
	}
	l.links++
	bridge := fmt.Sprintf("lk%d", l.links)
	a, b := bridge+"a", bridge+"b"
	k := &Link{Client: link.Client{Socket: filepath.Join(l.Dir, bridge+".sock")}, lab: l, port: port, bridge: bridge}
	k.Process, err = l.WAN.StartTool("link-"+n.Name, "link", "--up", c.Up.String(), "--down", c.Down.String(),
		"--seed", fmt.Sprint(seed), "--socket", k.Socket, a, b)
	if err != nil {
		return nil, err
	}
	err = Until(ctx, 10*time.Millisecond, func() error {
		if !k.Process.Running() {
			return fmt.Errorf("the emulator ended: %s", k.Process.Tail(5))
		}
		_, err := k.Config(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("link of %s: %w", n.Name, err)
	}
	lines := []string{addBridge(bridge)}
	for _, iface := range []string{bridge, a, b} {
		lines = append(lines, fmt.Sprintf("sysctl -qw net.ipv6.conf.%s.disable_ipv6=1", iface))
	}
	lines = append(lines,
		fmt.Sprintf("ip link set %s master %s", a, bridge),
		fmt.Sprintf("ip link set %s up", bridge),
		fmt.Sprintf("ip link set %s master %s", b, wanBridge),
		fmt.Sprintf("ip link set %s master %s", port, bridge))
	if err := l.WAN.Script(lines...); err != nil {
		return nil, errors.Join(fmt.Errorf("link of %s: %w", n.Name, err), k.Process.Stop())
	}
	return k, nil
}

// Remove plugs the namespace into the WAN again and ends the emulator; what is
// inside it is lost.
func (k *Link) Remove() error {
	return errors.Join(
		k.lab.WAN.Script(
			fmt.Sprintf("ip link set %s master %s", k.port, wanBridge),
			"ip link del "+k.bridge),
		k.Process.Stop())
}

// wanPort returns the name of the other end of the namespace's wan0.
func (l *Lab) wanPort(ctx context.Context, n *NS) (string, error) {
	index, err := n.Run(ctx, "cat", "/sys/class/net/wan0/iflink")
	if err != nil {
		return "", err
	}
	want := strings.TrimSpace(index) + ":"
	ports, err := l.WAN.Run(ctx, "ip", "-o", "link", "show", "master", wanBridge)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(ports) {
		// "7: p3@if2: <BROADCAST,…"
		if f := strings.Fields(line); len(f) > 1 && f[0] == want {
			name, _, _ := strings.Cut(f[1], "@")
			return strings.TrimSuffix(name, ":"), nil
		}
	}
	return "", fmt.Errorf("%s has no port at the WAN (a link already?)", n.Name)
}
