// Command dcutr is go-libp2p as it comes, to compare with: a relay of circuits, and nodes that punch holes by DCUtR.
//
//	dcutr relay --port 4501                            prints its addresses
//	dcutr node --relay ADDR[,ADDR...]                  prints its peer ID once it has a reservation, and waits
//	dcutr node --relay ADDR[,ADDR...] --dial ID        the same, then dials that peer through the relay, waits for a direct
//	                                                   path, and prints a Result, in a line of JSON
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/autorelay"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"
)

// Result is what came of a dial.
type Result struct {
	Path    string  `json:"path"` // none, relayed, direct
	Seconds float64 `json:"seconds"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dcutr:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say relay or node")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	port := f.Int("port", 4501, "port of TCP and QUIC")
	relays := f.String("relay", "", "addresses of the relay, with its peer ID")
	dial := f.String("dial", "", "peer ID to dial")
	wait := f.Duration("wait", 35*time.Second, "how long to wait for a direct path")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	listen := libp2p.ListenAddrStrings(
		fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", *port), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", *port),
		fmt.Sprintf("/ip6/::/tcp/%d", *port), fmt.Sprintf("/ip6/::/udp/%d/quic-v1", *port))
	if args[0] == "relay" {
		return serve(ctx, listen)
	}
	via, err := parse(*relays)
	if err != nil {
		return err
	}
	// Without a word on reachability a node waits for AutoNAT and dials no relay for a minute.
	h, err := libp2p.New(listen, libp2p.EnableHolePunching(), libp2p.ForceReachabilityPrivate(), libp2p.NATPortMap(),
		libp2p.EnableAutoRelayWithStaticRelays([]peer.AddrInfo{via}, autorelay.WithMinInterval(time.Second)))
	if err != nil {
		return err
	}
	defer h.Close()
	soon, cancel := context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	if err := reserved(soon, h); err != nil {
		return err
	}
	// A connection that arrives before the service for DCUtR has seen a public address is never punched.
	time.Sleep(2 * time.Second)
	fmt.Println(h.ID())
	if *dial == "" {
		<-ctx.Done()
		return nil
	}
	return meet(ctx, h, via, *dial, *wait)
}

// serve is a relay without limits.
func serve(ctx context.Context, listen libp2p.Option) error {
	h, err := libp2p.New(listen, libp2p.EnableRelayService(relay.WithInfiniteLimits()), libp2p.ForceReachabilityPublic())
	if err != nil {
		return err
	}
	defer h.Close()
	for _, a := range h.Addrs() {
		fmt.Printf("%s/p2p/%s\n", a, h.ID())
	}
	<-ctx.Done()
	return nil
}

// parse reads the addresses of one relay.
func parse(list string) (peer.AddrInfo, error) {
	var addrs []ma.Multiaddr
	for s := range strings.SplitSeq(list, ",") {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return peer.AddrInfo{}, fmt.Errorf("--relay: %w", err)
		}
		addrs = append(addrs, a)
	}
	infos, err := peer.AddrInfosFromP2pAddrs(addrs...)
	if err == nil && len(infos) != 1 {
		err = errors.New("addresses of one peer are required")
	}
	if err != nil {
		return peer.AddrInfo{}, fmt.Errorf("--relay: %w", err)
	}
	return infos[0], nil
}

// reserved waits for a reservation.
func reserved(ctx context.Context, h host.Host) error {
	for {
		for _, a := range h.Addrs() {
			if isCircuit(a) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("no reservation")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func isCircuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}

// meet dials a peer through the relay, whose side then punches, and reports the first direct connection.
func meet(ctx context.Context, h host.Host, via peer.AddrInfo, to string, wait time.Duration) error {
	id, err := peer.Decode(to)
	if err != nil {
		return fmt.Errorf("--dial: %w", err)
	}
	info := peer.AddrInfo{ID: id}
	for _, a := range via.Addrs {
		info.Addrs = append(info.Addrs, a.Encapsulate(ma.StringCast("/p2p/"+via.ID.String()+"/p2p-circuit")))
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	start := time.Now()
	report := func(path string) error {
		return json.NewEncoder(os.Stdout).Encode(Result{path, time.Since(start).Seconds()})
	}
	if err := h.Connect(network.WithAllowLimitedConn(ctx, "compare"), info); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return report("none")
	}
	for {
		for _, c := range h.Network().ConnsToPeer(id) {
			if !isCircuit(c.RemoteMultiaddr()) {
				return report("direct")
			}
		}
		select {
		case <-ctx.Done():
			return report("relayed")
		case <-time.After(5 * time.Millisecond):
		}
	}
}
