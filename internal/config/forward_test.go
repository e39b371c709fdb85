package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestForward(t *testing.T) {
	const head = "membership: {file: /etc/edgemesh/cluster.yaml}\n"
	for _, c := range []struct{ yaml, want, err string }{
		{"", "{[] [] false}", ""},
		{"forward: {from: [172.31.0.0/20, fd12::7/128]}", "{[172.31.0.0/20 fd12::7/128] [10250/tcp] false}", ""},
		{"forward: {from: [172.31.0.7/32], ports: [10250/tcp, 443/tcp]}", "{[172.31.0.7/32] [10250/tcp 443/tcp] false}", ""},
		{"nodes: {cloud-1: {forward: {from: [172.31.0.7/32]}}}", "{[172.31.0.7/32] [10250/tcp] false}", ""},
		{"nodes: {cloud-2: {forward: {from: [172.31.0.7/32]}}}", "{[] [] false}", ""},
		{"forward: all", "{[] [] true}", ""},
		{"forward: {uplinks: all, from: [172.31.0.7/32]}", "{[172.31.0.7/32] [10250/tcp] true}", ""},
		{"forward: all\nnodes: {cloud-1: {forward: {from: [172.31.0.7/32]}}}", "{[172.31.0.7/32] [10250/tcp] false}", ""},
		{"forward: {from: [172.31.0.7/32]}\nnodes: {cloud-1: {forward: all}}", "{[] [] true}", ""},
		{"nodes: {cloud-2: {forward: all}}", "{[] [] false}", ""},
		{"forward: everything", "", `forward: "everything" is not all`},
		{"nodes: {cloud-1: {forward: some}}", "", `nodes.cloud-1.forward: "some" is not all`},
		{"forward: {form: [172.31.0.7/32]}", "", "form"},
		{"forward: [172.31.0.7/32]", "", "forward"},
		{"forward: {from: [172.31.0.7]}", "", `forward.from[0]: "172.31.0.7" is not a prefix`},
		{"forward: {from: [172.31.0.7/20]}", "", `forward.from[0]: "172.31.0.7/20" is not a prefix`},
		{"forward: {from: [172.31.0.0/20, 0.0.0.0/0]}", "", "forward.from[1]: 0.0.0.0/0 is everyone"},
		{"forward: {from: [172.31.0.0/20], ports: [10250]}", "", "forward.ports"},
		{"forward: {from: [172.31.0.0/20], ports: [0/tcp]}", "", `forward.ports[0]: "0/tcp" is not a port`},
		{"forward: {ports: [10250/tcp]}", "", "forward.from: missing"},
		{"nodes: {cloud-1: {forward: {from: [x]}}}", "", "nodes.cloud-1.forward.from[0]"},
	} {
		got, err := Parse("agent.yaml", []byte(head+c.yaml+"\n"), "cloud-1")
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.yaml, err, c.err)
		}
		if is := fmt.Sprint(got.Forward); err == nil && is != c.want {
			t.Errorf("%s: %s, want %s", c.yaml, is, c.want)
		}
	}
}
