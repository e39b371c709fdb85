package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// kind says which values a key of a configuration may have here; any other value is a secret in the wrong place.
type kind int

const (
	word   kind = iota + 1 // a name, a number, an address; lists and mappings of known keys
	path                   // of a file, never its content: the file may hold a secret
	link                   // a URL, or HOST:PORT
	byName                 // a mapping with keys that the operator chooses
)

// known are the keys of agent.yaml, node.yaml, cluster.yaml, subnet.json and the conflist, ours and those of the reference
// plugins. What stands below another key is removed: cni.chained and the conflist hold whatever other plugins need, and a
// configuration that was refused may hold anything.
var known = func() map[string]kind { //nolint:gochecknoglobals // a constant
	out := map[string]kind{"joinSecretFile": path, "proxyCredentials": path, "kubeconfig": path, "nodeCertificate": path, "nodeKey": path,
		"proxy": link, "server": link, "nodes": byName}
	for _, name := range strings.Fields(`
		nodeName stateDir runtimeDir cniConfDir cniBinDir cniDataDir cniMode cni keepFor keepOnly exclude promiscMode
		allowSpoofing chained membership file kubernetes lan native vxlan vxlanPort listen metricsAddress relay enabled
		announce limits maxReservations maxReservationsPerIP maxCircuits maxCircuitsPerPeer bufferSize bandwidth discovery
		mdns portMapping uplink metered punch carrier sealed guess birthday forward from ports uplinks log format level tunQueues signers
		podCIDRs relays wanCIDRs encryption trusted networkPolicy mirrorPods enforcerNamespaces hostAccess hostPorts podDenyCIDRs banned admitLabel observers controllers
		name peerID site clusterCIDRs mtu reserved
		cniVersion cniVersions plugins type dataDir bridge capabilities ips portMappings snat`) {
		out[name] = word
	}
	return out
}()

// knownOnly removes from a configuration in YAML or JSON every value that is not that of a known key, and every comment. One that
// cannot be read keeps its known keys alone: it is unknown where a value ends there.
func knownOnly(text []byte, asJSON bool) (clean []byte, n int) {
	raw, err := yaml.YAMLToJSON(text)
	var tree any
	if err == nil && documents(text) > 1 {
		err = errors.New("several documents")
	}
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		err = dec.Decode(&tree)
	}
	if err != nil {
		return skeleton(text)
	}
	tree = keep(tree, word, &n)
	if asJSON {
		clean, err = json.MarshalIndent(tree, "", "  ")
	} else {
		clean, err = yaml.Marshal(tree)
	}
	if err != nil {
		return skeleton(text)
	}
	return clean, n
}

// documents counts the YAML documents of a file, generously.
func documents(text []byte) int {
	return 1 + bytes.Count(bytes.TrimLeft(text, "- \n\r\t"), []byte("\n---"))
}

// keep is v, the value of a key of kind k, without secrets; kind 0 is that of an unknown key.
func keep(v any, k kind, n *int) any {
	switch v := v.(type) {
	case nil:
		return nil
	case map[string]any:
		if k == word || k == byName {
			return keepMapping(v, k, n)
		}
	case []any:
		if k == byName {
			k = word
		}
		if k == word {
			out := make([]any, len(v))
			for i := range v {
				out[i] = keep(v[i], k, n)
			}
			return out
		}
	case string:
		clean, removed := value(v, k)
		*n += removed
		return clean
	default:
		if k == word {
			return v
		}
	}
	*n++
	return Removed
}

func keepMapping(v map[string]any, k kind, n *int) map[string]any {
	out := make(map[string]any, len(v))
	for name, value := range v {
		of := known[name]
		if _, mapping := value.(map[string]any); k == byName && mapping {
			of = word
		}
		if !plainKey.MatchString(name) {
			name = Removed // all such keys become one
			*n++
		}
		out[name] = keep(value, of, n)
	}
	return out
}

var (
	plainKey  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._/-]{0,80}$`)
	plainPath = regexp.MustCompile(`^(/[A-Za-z0-9._-]+){2,}$`)                                            // no base64: that has one slash in front at most, or ends with =
	plainURL  = regexp.MustCompile(`^((?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)([/?#].*)?$`) // without its scheme
	scheme    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)
)

// maxWord bounds what is believed to be no key or certificate: the longest value of ours is a relay's address.
const maxWord = 256

// value is the text of one value of kind k, without secrets.
func value(text string, k kind) (clean string, n int) {
	switch {
	case text == "":
		return "", 0
	case k == path && plainPath.MatchString(text):
		return text, 0
	case k == link:
		front := scheme.FindString(text)
		host, user := text[len(front):], ""
		// The last @ ends the password: one that was not escaped may hold @ and / itself.
		if i := strings.LastIndexByte(host, '@'); i >= 0 {
			host, user, n = host[i+1:], Removed+"@", 1
		}
		if m := plainURL.FindStringSubmatch(host); m != nil {
			if len(m[2]) > 1 {
				m[2], n = "/"+Removed, n+1
			}
			return front + user + m[1] + m[2], n
		}
	case k == word && len(text) <= maxWord && !strings.ContainsAny(text, "\r\n"):
		out, n := Clean([]byte(text))
		return string(out), n
	}
	return Removed, 1
}

var keyOnLine = regexp.MustCompile(`^([\s{,-]*)["']?([A-Za-z]+)["']?\s*:`)

// skeleton has each line's known key, and nothing else.
func skeleton(text []byte) (clean []byte, n int) {
	out := []byte("# not valid YAML or JSON: values may be secrets, and are left out\n")
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) == 0 {
			out = append(out, '\n')
			continue
		}
		n++
		if m := keyOnLine.FindSubmatch(line); m != nil && known[string(m[2])] != 0 {
			out = fmt.Appendf(out, "%s%s: %s\n", m[1], m[2], Removed)
			continue
		}
		out = append(out, Removed+"\n"...)
	}
	return out, n
}
