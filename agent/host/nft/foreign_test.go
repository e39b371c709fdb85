package nft

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/nstest"
)

func TestCheckSeesNativeFilter(t *testing.T) {
	const chain = "nft add table inet strict\nnft add chain inet strict forward_all {type filter hook forward priority 10 ; policy "
	for _, c := range []struct {
		name, script string
		warns        bool
	}{
		{"policy", chain + "drop ; }", true},
		{"firewalld's way", chain + "accept ; }\nnft add rule inet strict forward_all ct state established accept\nnft add rule inet strict forward_all counter reject with icmpx admin-prohibited", true},
		{"range accepted", chain + "drop ; }\nnft add rule inet strict forward_all ip saddr 10.244.0.0/16 accept", false},
		{"bridge accepted", chain + "drop ; }\nnft add rule inet strict forward_all iifname edgemesh-br accept", false},
		{"rejects some", chain + "accept ; }\nnft add rule inet strict forward_all ip saddr 10.9.0.0/16 reject", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Enter(t)
			nstest.Run(t, c.script)
			nft, err := exec.LookPath("nft")
			if err != nil {
				t.Fatal(err)
			}
			ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			detail, remedy := CheckForward(t.Context(), nft, plan.State{Each: [2]plan.Family{{Wanted: true, Ranges: ranges}}})
			if warns := detail != ""; warns != c.warns || warns && (!strings.Contains(detail, "inet strict") || remedy == "") {
				t.Errorf("detail %q, remedy %q", detail, remedy)
			}
		})
	}
}
