package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/fleet"
	"edgemesh/internal/cli"
	"edgemesh/internal/cli/clitest"
	"edgemesh/internal/config"
)

// onTerminal runs f with one of so many columns, and returns what was shown, without colours.
func onTerminal(t *testing.T, columns uint16, f func(w *os.File)) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		noTerminal(t, err) // a container without devpts
	}
	defer master.Close()
	err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 60, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	// The other end by its master: /dev/pts may be another instance's.
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		noTerminal(t, errno)
	}
	tty := os.NewFile(fd, "tty")
	shown := make(chan string)
	go func() {
		b, _ := io.ReadAll(master) // ends with EIO once tty is closed
		shown <- string(b)
	}()
	f(tty)
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(<-shown, "\r", "")
}

// noTerminal skips the test, except in CI, where nobody would notice.
func noTerminal(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("no pseudo-terminal: %v", err)
	}
	t.Skip(err)
}

// busy is the status of a node with long names, long reasons, and trouble.
type busy struct{ known }

const longReason = "dial tcp 203.0.113.7:4470: connect: connection refused; no port mapping: the router does not answer NAT-PMP, PCP or UPnP"

func (busy) Status(bool) control.Status {
	ms, mbps, since := 123.4, 93.7, time.Now().Add(-time.Hour)
	s := control.Status{Node: "edge-in-the-basement-of-building-17", PeerID: "12D3KooWLHpiRoxBtHQpTULqBSfrWxyTWW7q7WaVGaDGDbLXkbeT", Version: "v1.2.3", StartedAt: since,
		NAT: control.NAT{Kind: "random", Detail: "random: each destination gets another port or another outside address", Router: "the router does not answer NAT-PMP, PCP or UPnP"}, Addresses: []string{"10.244.0.1", "fd00:10:244::1"},
		Relays: []control.RelayStatus{{PeerID: "12D3KooWrelayrelay", Addr: "/dns4/relay-1.frankfurt.example.org/udp/4470/quic-v1", Error: longReason},
			{PeerID: "12D3KooWrelayother", Addr: "/ip4/203.0.113.8/tcp/4470", Connected: true, Reserved: true, RTTMs: &ms}},
		Pools: []control.Pool{{Blocks: []string{"10.244.0.0/24"}, Size: 253, Used: 3}, {Blocks: []string{"fd00:10:244:1:2:3:4:0/112"}, Size: 1 << 62}}}
	for i, path := range []string{"none", "relayed", "punched", "direct", "native"} {
		s.Peers = append(s.Peers, control.PeerStatus{Node: fmt.Sprintf("camera-gateway-of-the-north-entrance-%d", i), PeerID: "12D3KooW" + path, Path: path, Transport: "relay/tcp",
			PodCIDRs: []string{"10.244.7.0/24", "fd00:10:244:7::/64"}, Endpoint: "/ip6/2001:db8:1234:5678:9abc:def0:1234:5678/udp/4001/quic-v1", RTTMs: &ms, WayMs: &ms, RateMbps: &mbps,
			Since: &since, TxBytes: 123e9, RxBytes: 456e9, Drops: 123456, Reason: longReason})
	}
	return s
}

func (busy) Ping(_ context.Context, _ control.PingRequest, each func(control.PingResult)) (control.PingReply, error) {
	ms := 123.4
	each(control.PingResult{Seq: 1, RTTMs: &ms, Path: "relayed", Transport: "relay/tcp", Relay: "12D3KooWrelayrelay"})
	each(control.PingResult{Seq: 2, Error: longReason})
	return control.PingReply{Sent: 2, Received: 1, MinMs: &ms, AvgMs: &ms, MaxMs: &ms, Path: "relayed", Transport: "relay/tcp", Relay: "12D3KooWrelayrelay", Reason: longReason}, nil
}

func (busy) Doctor(context.Context) []findings.Finding {
	return []findings.Finding{findings.Brokenf("relays", "check the firewall between this node and the relay: TCP and UDP to its port 4470, outgoing", "%s", longReason),
		findings.Warningf("clock", "set the clock", "this host's clock differs from the relay's by %v", 2*time.Hour), findings.Okayf("nat", "%s", longReason)}
}

func (b busy) Explain(ctx context.Context, _ string) ([]findings.Finding, error) {
	return b.Doctor(ctx), nil
}

// installed makes a root of a host with a record of an installation, and a configuration.
func installed(t *testing.T, root string) {
	t.Helper()
	for name, text := range map[string]string{"/var/lib/edgemesh/install.json": `{"form": "systemd", "files": {}}`, config.DefaultPath: "nodeName: a\nmembership: {file: /x}\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What the demo's commands show keeps the terminal's width, and says all the same why.
func TestWidth(t *testing.T) {
	dir := t.TempDir()
	s, err := control.Serve(dir, busy{newKnown()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	kubectl := filepath.Join(dir, "kubectl")
	script := `#!/bin/sh
case "$*" in
*"get meshnodes"*) echo '{"items": [{"metadata": {"name": "edge-in-the-basement-of-building-17"}, "status": {"agentVersion": "v0.2.0", "conditions": [{"type": "Ready", "status": "Unknown", "message": "` + longReason + `"}]}}]}' ;;
*"get "*) echo '{"items": []}' ;;
esac
`
	if err := os.WriteFile(kubectl, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECTL", kubectl)
	t.Setenv("NO_COLOR", "1")
	root := t.TempDir()
	all := "connect: connection refused; no port mapping"
	for line, want := range map[string]string{
		"status": "connect: connection refused", "status --all": all, "status camera-gateway-of-the-north-entrance-1": all, "status --path relayed": all, "status nobody-knows-this-node-in-the-whole-cluster-at-all": "no such member",
		"doctor": "connection refused", "doctor --verbose": all, "doctor 10.244.7.9": "connection refused", "ping camera-gateway": all, "ping camera-gateway --json=false --count 2": all,
		"netcheck --port-mapping=false --relay /ip4/127.0.0.1/tcp/1/p2p/12D3KooWLHpiRoxBtHQpTULqBSfrWxyTWW7q7WaVGaDGDbLXkbeT": "connect: connection refused",
		"uninstall --root " + root: "stop it, then run", "log-level loudest": "not one of debug",
		"kubectl status": all, "kubectl status --all": all, "kubectl status nobody-knows-this-node-in-the-whole-cluster-at-all": "no such MeshNode",
	} {
		for _, columns := range []uint16{80, 120} {
			installed(t, root)
			out := onTerminal(t, columns, func(w *os.File) {
				args := strings.Fields(line)
				if args[0] == "kubectl" {
					fleet.Execute(t.Context(), args[1:], nil, w, w)
					return
				}
				if !slices.Contains([]string{"netcheck", "uninstall"}, args[0]) {
					args = append(args, "--runtime-dir", dir)
				}
				cli.Execute(t.Context(), newRoot(), args, w, w)
			})
			clitest.Narrow(t, out, int(columns))
			if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("%s in %d columns: %q is missing:\n%s", line, columns, want, out)
			}
		}
	}
}
