package fleet

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
)

// The key that a relay pins is printed in its line; a relay's addresses get into the PodNetwork once it has shown an agent its key, where helm made
// that the value is named; and a relay that members have alone stays until that is forced.
func TestRelays(t *testing.T) {
	const one, two, three = "12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m", "12D3KooWRnyfsMFE2cRZumFdRhFUj2FkyX7fH3vxqqFXjDgonXjd", "12D3KooWSiNn6HmgyEb7z5fCb9sBo7hyPA4DgyXAEUSxtGJwcMUt"
	cluster := func(labels, signer, answers, lacks string) string {
		return fmt.Sprintf(`#!/bin/sh
case "$*" in
*"get podnetworks.network.edgemesh.io cluster -o json") echo '{"metadata": {"resourceVersion": "7", "labels": {%s}, "annotations": {"meta.helm.sh/release-name": "mesh"}}, "spec": {"signed": ["CiQIA"], "relays": ["/ip4/192.0.2.1/tcp/4470/p2p/%s", "/ip4/192.0.2.2/tcp/4470/p2p/%s"]}, "status": {"signer": "%s"}}' ;;
*"patch podnetworks.network.edgemesh.io"*) echo "$*" ;;
*"agent-1 -c agent -- edgemesh-agent netcheck --port-mapping=false --prove --relay /ip4/"*) %s ;;
*"agent-1 -c agent -- edgemesh-agent status --json") echo '{"relays": [{"peerID": "%s", "reserved": true, "version": "v0.3.0", "knows": true}]}' ;;
*"agent-2 -c agent -- edgemesh-agent status --json") echo '{"relays": [{"peerID": "%s", "reserved": true}, {"peerID": "%s", "reserved": true, "behind": "2026-11-30T19:00:00Z"%s}]}' ;;
`, labels, one, two, signer, cmp.Or(answers, "true"), one, one, two, lacks) + strings.TrimPrefix(strings.TrimPrefix(fake, "#!/bin/sh\n"), "case \"$*\" in\n")
	}
	const addr = "/ip4/203.0.113.5/tcp/4470/p2p/" + three
	const made = "/ip4/192.0.2.1/tcp/4470/p2p/" + three
	helm := `"app.kubernetes.io/managed-by": "Helm"`
	for _, x := range []struct {
		labels, signer, answers, lacks, args string
		code                                 int
		want                                 []string
	}{
		{args: "relay add", signer: three, want: []string{"  edgemesh-relay install --signer " + three + "\n", "relay add ADDRESS", "list both under signers"}},
		{args: "relay add", code: 1, want: []string{"names no signer"}},
		{args: "relay add " + addr, want: []string{`{"metadata":{"resourceVersion":"7"},"spec":{"relays":["/ip4/192.0.2.1/tcp/4470/p2p/` + one, `"` + addr + `"]}}`}},
		{args: "relay add " + addr, answers: "exit 1", code: 1, want: []string{"sees no relay with that key by TCP", "--unproved"}},
		{args: "relay add " + made, code: 1, want: []string{"has the relay " + one + " at that address; nothing was changed"}},
		{args: "relay add --replace " + made, want: []string{`{"relays":["/ip4/192.0.2.2/tcp/4470/p2p/` + two + `","` + made + `"]}`}},
		{args: "relay add --unproved " + addr, answers: "exit 1", want: []string{`"` + addr + `"]}}`}},
		{args: "relay add " + addr, labels: helm, want: []string{"nothing was changed", "helm upgrade mesh CHART -n mesh --reset-then-reuse-values --set-json 'podNetwork.relays=[", addr}},
		{args: "relay add 203.0.113.5", code: 2, want: []string{"is not a relay's address"}},
		{args: "relay list", want: []string{one + "  v0.3.0  2 members reserved  knows all 4 members                               /ip4/", two + "  -       1 member reserved   may lack members or bans that these know: edge-2  /ip4/192.0.2.2/tcp/4470\n", "do not answer: edge-3 and edge-4"}},
		{args: "relay list", lacks: `, "lacks": 2, "lacking": ["shop-7", "ban shop-12"]`, want: []string{"1 member reserved   lacks 2 of what is signed: shop-7, ban shop-12  /ip4/192.0.2.2"}},
		{args: "relay list", lacks: `, "lacks": 3, "lacking": ["shop-7"]`, want: []string{"lacks 3 of what is signed: shop-7, …  /ip4/"}},
		{args: "relay remove " + one, code: 1, want: []string{"nothing was changed: these hold a reservation there alone: edge-1; these do not answer: edge-3 and edge-4"}},
		{args: "relay remove --force " + one, want: []string{`"spec":{"relays":["/ip4/192.0.2.2/tcp/4470/p2p/` + two + `"]}}`}},
		{args: "relay remove " + three, code: 2, want: []string{"no such relay"}},
	} {
		code, out := run(t, cluster(x.labels, x.signer, x.answers, x.lacks), strings.Fields(x.args)...)
		contains(t, out, x.want...)
		if code != x.code {
			t.Errorf("%s: code %d, want %d:\n%s", x.args, code, x.code, out)
		}
	}
}
