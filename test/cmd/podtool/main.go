// Command podtool is what the tests run inside pods and namespaces: a server and
// clients that report in JSON on standard output, so that a test does not depend
// on which tools an image has. It exits with 1 when what it tried failed and
// with 2 when it was called wrongly.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// errUsage makes podtool exit with 2.
var errUsage = errors.New("bad usage")

type command struct {
	name, args, what string
	run              func(ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"serve", "[--name NAME]", "HTTP and UDP echo on 9376, bulk and TCP echo on 9377", serve},
		{"get", "[--timeout 2s] URL", "fetch and print", get},
		{"first", "[--every 1s] [--timeout 10s] URL...", "fetch each once, and how long each took", first},
		{"lookup", "[--timeout 5s] NAME", "addresses of a name", lookup},
		{"bulk", "[--bytes N] [--pull] [--sum=false] HOST",
			"send (or fetch) bytes over TCP, compare SHA-256", bulk},
		{"udp", "[--size N] [--count N] HOST", "datagrams that must come back unchanged", udpEcho},
		{"mapped", "[--from PORT] HOST...", "the address and port that each host sees", mapped},
		{"gaps", "[--proto icmp|udp|tcp] [--size 64] [--interval 20ms] [--duration 5s] HOST",
			"a steady flow, its losses and longest gap", gaps},
		{"answers", "[--proto tcp|udp] [--duration 1s] HOST",
			"the round trip of one byte, again and again: how long it takes", answers},
		{"requests", "[--parallel 64] [--new] [--duration 1s] HOST", "small HTTP requests, as many as there can be", requests},
		{"spoof", "--src A [--count N] [--from-mac M --to-mac M {--dev IF | --vtep A:PORT --vni N}] HOST",
			"UDP datagrams with a forged source, also in frames of one's own, also inside VXLAN", spoof},
		{"knock", "[--proto tcp|quic] [--count N] [--first TEXT] [--from A --hosts N] [--hold 10s] HOST:PORT",
			"connections that never say whose they are", knock},
		{"talk", "[--every 200ms]", "give back each line of standard input, or say lines", talk},
		{"ra", "--iface IF [--prefix P] [--nat64 P] [--every 1s]", "router advertisements", advertise},
		{"names", "[--no-a] [--no-aaaa] [--late-aaaa D] [--dns64 P] AT ADDR", "a name server at AT that answers ADDR for every name, with faults", names},
		{"proxy", "[--life 0s] HOST:PORT", "an HTTP proxy that ends connections after some time", proxy},
		{"link", "[--up D] [--down D] [--both D] [--mtu N] [--seed N] [--socket PATH] A B",
			"be the link between new TAPs A and B; D is like 'rate=100M queue=50ms delay=25ms loss=1%'", emulate},
		{"without", "OPTION[,OPTION...] PROGRAM [ARG...]",
			"run a program that may not set socket options: congestion, udp-buffers", without},
		{"confine", "--syscalls N[,N...] PROGRAM [ARG...]", "run a program that may use these system calls only", confine},
		{"readonly", "--except PATH[,PATH...] PROGRAM [ARG...]", "run a program that may write to these paths only", readonly},
		{"lab", "list | reap [TAG] | watch DIR", "labs on this machine", labs},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:]))
}

func execute(ctx context.Context, args []string) int {
	all := commands()
	i := -1
	if len(args) > 0 {
		i = slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	}
	if i < 0 {
		var b strings.Builder
		for _, c := range all {
			fmt.Fprintf(&b, "  podtool %s %s\n      %s\n", c.name, c.args, c.what)
		}
		fmt.Fprint(os.Stderr, b.String())
		return 2
	}
	err := all[i].run(ctx, args[1:])
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "podtool %s: %v\n  podtool %s %s\n", all[i].name, err, all[i].name, all[i].args)
		return 2
	default:
		fmt.Fprintf(os.Stderr, "podtool %s: %v\n", all[i].name, err)
		return 1
	}
}

// report prints v as one JSON document.
func report(v any) error {
	return json.NewEncoder(os.Stdout).Encode(v)
}
