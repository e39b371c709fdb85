package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"edgemesh/test/bench/report"
)

// codeSteps are the benchmarks of a packet's steps, by package: reading and writing the
// device, the tunnel in both directions, the seal of datagrams.
func codeSteps() map[string]string {
	return map[string]string{
		"./tunnel":                    "^Benchmark(Send|Receive|Datagrams)$",
		"./tunnel/tun":                "^Benchmark(Read|Write)$",
		"./tunnel/virtio":             "^Benchmark(Segment|Complete)$",
		"./tunnel/p2p/carrier/sealed": "^BenchmarkSeal$",
	}
}

// codeOrder is the packages in the order of a packet's steps.
func codeOrder() []string {
	return []string{"./tunnel/tun", "./tunnel/virtio", "./tunnel", "./tunnel/p2p/carrier/sealed"}
}

// code runs the benchmarks of a packet's steps.
func (b *bench) code(ctx context.Context, p *report.Part) error {
	if err := b.strike(); err != nil {
		return err
	}
	for _, pkg := range codeOrder() {
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", codeSteps()[pkg], "-benchmem",
			"-benchtime", b.plan.benchTime, pkg)
		cmd.Dir = b.root
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go test -bench %s: %w\n%s%s", pkg, err, stdout.Bytes(), stderr.Bytes())
		}
		if err := addBenchmarks(p, strings.TrimPrefix(pkg, "./"), stdout.String()); err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		b.log.printf("%s", pkg)
	}
	return nil
}

var benchmarkName = regexp.MustCompile(`^Benchmark(\S+?)(-\d+)?$`)

// addBenchmarks reads what `go test -bench -benchmem` prints:
//
//	BenchmarkSend/64-2    3204    73.5 ns/op    870.61 MB/s    0 B/op    0 allocs/op
func addBenchmarks(p *report.Part, pkg, output string) error {
	found := false
	for line := range strings.Lines(output) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		row := p.At(pkg+" "+benchmarkName.FindStringSubmatch(f[0])[1], 0)
		for i := 3; i < len(f); i += 2 {
			m, ok := map[string]report.Metric{"ns/op": report.CodeNs, "allocs/op": report.CodeAllocs}[f[i]]
			if !ok {
				continue
			}
			v, err := strconv.ParseFloat(f[i-1], 64)
			if err != nil {
				return fmt.Errorf("benchmark %s: %w", f[0], err)
			}
			row.Add(m, v)
			found = true
		}
	}
	if !found {
		return errors.New("no benchmark was run")
	}
	return nil
}
