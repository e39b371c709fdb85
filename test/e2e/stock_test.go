package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestMatrixStock prints what go-libp2p as it comes makes of the pairs of TestMatrix: a relay, reservations, DCUtR and port
// mapping, with reachability forced, without which a node dials no relay for a minute. Nothing is promised for it.
func TestMatrixStock(t *testing.T) {
	tier.Long(t)
	bin := filepath.Join(t.TempDir(), "dcutr")
	out, err := exec.Command("go", "build", "-o", bin, "edgemesh/test/cmd/dcutr").CombinedOutput()
	if err != nil {
		t.Fatalf("build dcutr: %v: %s", err, out)
	}
	matrix(t, func(t *testing.T, a, b stands) string {
		t.Helper()
		l := newLab(t)
		r := relay(t, l, "relay")
		n1, n2 := a.put(t, l, "edge-1"), b.put(t, l, "edge-2")
		return meetStock(t, bin, r, n1, n2)
	})
}

// meetStock returns the path of a pair and when it was there. n2 has the reservation that n1 dials, and begins to punch.
func meetStock(t *testing.T, bin string, r *lab.Relay, n1, n2 *lab.Node) string {
	t.Helper()
	server, err := r.NS.Start("stock-relay", bin, "relay")
	ok(t, err)
	var addrs []string
	ok(t, lab.Until(within(t, 10*time.Second), 20*time.Millisecond, func() error {
		addrs = nil
		for _, a := range said(server) {
			if !strings.HasPrefix(a, "/ip4/127.") && !strings.HasPrefix(a, "/ip6/::1/") {
				addrs = append(addrs, a)
			}
		}
		if len(addrs) < 2 {
			return errors.New("the relay has no addresses")
		}
		return nil
	}))
	node := []string{bin, "node", "--port", fmt.Sprint(lab.ConePort), "--relay", strings.Join(addrs, ",")}
	b, err := n2.NS.Start("stock-node", node...)
	ok(t, err)
	var id string
	err = lab.Until(within(t, 15*time.Second), 20*time.Millisecond, func() error {
		if lines := said(b); len(lines) > 0 {
			id = lines[0]
			return nil
		}
		return errors.New("no reservation")
	})
	if err != nil {
		return "none"
	}
	out, err := n1.NS.Run(within(t, time.Minute), append(node, "--dial", id)...)
	if err != nil {
		return "none"
	}
	lines := strings.Fields(out)
	var result struct {
		Path    string  `json:"path"`
		Seconds float64 `json:"seconds"`
	}
	ok(t, json.Unmarshal([]byte(lines[len(lines)-1]), &result))
	if result.Path != "direct" {
		return result.Path
	}
	return fmt.Sprintf("direct %.1f s", result.Seconds)
}

// said are the lines that a program has printed so far, without those of its log.
func said(p *lab.Process) []string {
	text, _ := os.ReadFile(p.Log)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasSuffix(line, "\n") && !strings.Contains(line, " ") && !strings.Contains(line, "\t") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
