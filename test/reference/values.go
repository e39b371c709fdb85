package reference

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

const chartHead = `# EdgeMesh

Pod network for clusters whose nodes are behind NATs, on several sites, at the edge and in the cloud: a pod reaches any
other pod of the cluster by its IP. Kubernetes 1.28 or later; nodes of amd64, arm64 and arm/v7.

    helm install edgemesh oci://REGISTRY/charts/edgemesh -n kube-system -f values.yaml

    # values.yaml
    image: {registry: REGISTRY/edge}
    apiServer: {host: 203.0.113.10}       # where nodes reach the API server
    podNetwork:
      podCIDRs: [10.244.0.0/16]           # the cluster's
      relays:                             # as edgemesh-relay prints them
        - /ip4/203.0.113.5/tcp/4470/p2p/12D3KooW…
        - /ip4/203.0.113.5/udp/4470/quic-v1/p2p/12D3KooW…

To upgrade, apply the new chart's ` + "`" + `crds/` + "`" + ` with kubectl, then run ` + "`" + `helm upgrade … --reset-then-reuse-values` + "`" + `. Before
` + "`" + `helm uninstall` + "`" + ` run the release's ` + "`" + `cleanup-nodes.sh` + "`" + `. The release's documentation has the rest.

## Values

Made from the comments in ` + "`" + `values.yaml` + "`" + ` by ` + "`" + `make reference` + "`" + `.
`

func values(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, "manifests/edgemesh/values.yaml"))
	if err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(chartHead)
	top := doc.Content[0].Content
	for i := 0; i < len(top); i += 2 {
		key, value := top[i], top[i+1]
		fmt.Fprintf(&b, "\n### %s\n\n", key.Value)
		if about := comment(key); about != "" {
			b.WriteString(wrap(about) + "\n\n")
		}
		b.WriteString(row("value", "default", "meaning") + row("---", "---", "---"))
		if err := rows(&b, key.Value, value); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// rows writes a row for each value below a mapping.
func rows(b *strings.Builder, path string, n *yaml.Node) error {
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			if about := comment(key); about != "" {
				b.WriteString(row("`"+at+"`", "", about))
			}
			if err := rows(b, at, value); err != nil {
				return err
			}
			continue
		}
		inline := *value
		inline.HeadComment, inline.LineComment, inline.FootComment = "", "", ""
		inline.Style |= yaml.FlowStyle
		flow(&inline)
		text, err := yaml.Marshal(&inline)
		if err != nil {
			return err
		}
		if absent, meaning, of := optional(key); of != "" {
			b.WriteString(row("`"+path+"."+absent+"`", "", meaning))
			key.HeadComment = of
		}
		if comment(key) == "" {
			return fmt.Errorf("values.yaml: %s has no comment that says what it means", at)
		}
		b.WriteString(row("`"+at+"`", "`"+string(bytes.TrimSpace(text))+"`", comment(key)))
	}
	return nil
}

var commentedOut = regexp.MustCompile(`(?m)^# ([a-zA-Z]+): \S+\n`)

// optional is a key that is commented out above this one, what stands above it, and the rest, which is about this one.
func optional(key *yaml.Node) (name, meaning, rest string) {
	at := commentedOut.FindStringSubmatchIndex(key.HeadComment)
	if at == nil {
		return "", "", ""
	}
	above := yaml.Node{HeadComment: key.HeadComment[:at[0]]}
	return key.HeadComment[at[2]:at[3]], comment(&above), key.HeadComment[at[1]:]
}

// flow writes lists and mappings on one line.
func flow(n *yaml.Node) {
	for _, x := range n.Content {
		x.Style |= yaml.FlowStyle
		flow(x)
	}
}

// comment is what stands above a key, in one line.
func comment(key *yaml.Node) string {
	var out []string
	paragraphs := strings.Split(key.HeadComment, "\n\n")
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		out = append(out, strings.TrimPrefix(strings.TrimSpace(line), "#"))
	}
	return cell(strings.Join(out, " "))
}
