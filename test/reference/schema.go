package reference

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// constraints has what comments cannot say: types, patterns, bounds.
const constraints = "manifests/values.constraints.json"

// valuesSchema is the chart's schema: the constraints, and of each value what its comment and its default say. A value without
// constraints, or constraints of no value, is an error.
func valuesSchema(root string) (string, error) {
	values, err := parse(filepath.Join(root, "manifests/edgemesh/values.yaml"))
	if err != nil {
		return "", err
	}
	schema, err := parse(filepath.Join(root, constraints)) // JSON is YAML, which keeps the order
	if err != nil {
		return "", err
	}
	var d describer
	d.describe("", values, schema)
	d.explain(schema)
	if len(d.wrong) > 0 {
		slices.Sort(d.wrong)
		return "", fmt.Errorf("values.yaml and %s disagree:\n%s", constraints, strings.Join(d.wrong, "\n"))
	}
	var b strings.Builder
	emit(&b, schema, 0)
	return b.String() + "\n", nil
}

func parse(path string) (*yaml.Node, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc.Content[0], nil
}

// child is the value of a mapping's key, nil: none.
func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n != nil && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// describer notes where the two disagree.
type describer struct{ wrong []string }

// describe gives the properties of a schema the descriptions and defaults of the values, of one mapping and all below it. What is
// defined once for several values stays as it is, and so does what is empty by default, whose comment says what may be in it.
func (d *describer) describe(path string, values, schema *yaml.Node) {
	properties := child(schema, "properties")
	if properties == nil || len(values.Content) == 0 {
		return
	}
	seen := map[string]bool{"global": true} // Helm's own
	for i := 0; i < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		if absent, meaning, rest := optional(key); rest != "" {
			key.HeadComment = rest
			d.set(path+absent, meaning, nil, child(properties, absent))
			seen[absent] = true
		}
		p := child(properties, key.Value)
		d.set(path+key.Value, comment(key), value, p)
		seen[key.Value] = true
		if p != nil && value.Kind == yaml.MappingNode {
			d.describe(path+key.Value+".", value, p)
		}
	}
	for i := 0; i < len(properties.Content); i += 2 {
		if name := properties.Content[i].Value; !seen[name] {
			d.wrong = append(d.wrong, path+name+": has constraints, and is not in values.yaml")
		}
	}
}

// set puts description and default in front of a property's constraints.
func (d *describer) set(path, meaning string, value, property *yaml.Node) {
	if property == nil {
		d.wrong = append(d.wrong, path+": is in values.yaml, and has no constraints")
		return
	}
	var front []*yaml.Node
	add := func(key string, n *yaml.Node) {
		if child(property, key) == nil {
			front = append(front, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, n)
		}
	}
	if meaning != "" {
		add("description", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(meaning, `\|`, "|")})
	}
	if value != nil && value.Kind != yaml.MappingNode {
		add("default", value)
	}
	property.Content = append(front, property.Content...)
}

// explain has what does not fit a pattern refused in words, which Helm prints in place of the pattern: the value fits, or else it has
// to be the words.
func (d *describer) explain(n *yaml.Node) {
	for _, x := range n.Content {
		d.explain(x)
	}
	pattern, words := child(n, "pattern"), child(n, "words")
	if n.Kind != yaml.MappingNode || pattern == nil || pattern.Kind != yaml.ScalarNode {
		return
	}
	if words == nil {
		if child(n, "type") != nil {
			d.wrong = append(d.wrong, pattern.Value+": has no words")
		}
		return
	}
	text := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
	fits, other := &yaml.Node{Kind: yaml.MappingNode}, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{text("const"), words}}
	var rest []*yaml.Node
	for i := 0; i < len(n.Content); i += 2 {
		switch n.Content[i].Value {
		case "words":
		case "pattern", "not":
			fits.Content = append(fits.Content, n.Content[i:i+2]...)
		default:
			rest = append(rest, n.Content[i:i+2]...)
		}
	}
	n.Content = append(rest, text("if"), fits, text("else"), other)
}

// emit writes a node as JSON: on one line if that is short enough.
func emit(b *strings.Builder, n *yaml.Node, indent int) {
	if line := inline(n); utf8.RuneCountInString(line)+2*indent <= 110 || len(n.Content) == 0 {
		b.WriteString(line)
		return
	}
	begin, end, step := "{", "}", 2
	if n.Kind == yaml.SequenceNode {
		begin, end, step = "[", "]", 1
	}
	b.WriteString(begin)
	for i := 0; i < len(n.Content); i += step {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n" + strings.Repeat("  ", indent+1))
		if step == 2 {
			b.WriteString(scalar(n.Content[i]) + ": ")
		}
		emit(b, n.Content[i+step-1], indent+1)
	}
	b.WriteString("\n" + strings.Repeat("  ", indent) + end)
}

func inline(n *yaml.Node) string {
	var parts []string
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			parts = append(parts, scalar(n.Content[i])+": "+inline(n.Content[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case yaml.SequenceNode:
		for _, x := range n.Content {
			parts = append(parts, inline(x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return scalar(n)
}

// scalar is a string, number or truth value in JSON.
func scalar(n *yaml.Node) string {
	if n.Tag == "!!str" {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(n.Value) // a string has no error
		return strings.TrimSpace(b.String())
	}
	return n.Value
}
