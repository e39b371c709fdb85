package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"edgemesh/internal/durable"
)

// edgeCoreBackup is edgecore's configuration as it was before we changed its nodeIP first.
const edgeCoreBackup = edgeCore + ".before-edgemesh"

// edgeCoreEdit is what was changed in edgecore's configuration, which has no drop-ins.
type edgeCoreEdit struct {
	Set string  `json:"set"` // the nodeIP that we wrote
	Was *string `json:"was"` // the one before; nil: there was none
}

// errByHand means that edgecore's configuration is not written as edgecore and keadm write it.
var errByHand = errors.New("cannot be edited safely")

// withNodeIP returns edgecore's configuration with modules.edged.nodeIP replaced, or added, or removed (to is nil), and what
// it was. All other bytes stay: comments, order and the token. The error wraps errByHand.
func withNodeIP(text []byte, to *string) (out []byte, was *string, err error) {
	edged, err := edgedOf(text)
	if err != nil {
		return nil, nil, err
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	key, value := child(edged, "nodeIP")
	switch {
	case value == nil && to == nil:
		return text, nil, nil
	case value == nil: // a line of its own, before the first key
		first := edged.Content[0]
		added := fmt.Sprintf("%s%s: %s\n", strings.Repeat(" ", first.Column-1), "nodeIP", *to)
		lines[first.Line-1] = append([]byte(added), lines[first.Line-1]...)
	default:
		old := value.Value
		was = &old
		line := lines[value.Line-1]
		end, found := value.Column-1+len(value.Value), value.Style == 0 && value.Line == key.Line
		if value.Style == yaml.DoubleQuotedStyle || value.Style == yaml.SingleQuotedStyle {
			end, found = end+2, value.Line == key.Line
		}
		if !found || value.Kind != yaml.ScalarNode || value.Anchor != "" || end > len(line) {
			return nil, nil, fmt.Errorf("line %d: modules.edged.nodeIP %w", value.Line, errByHand)
		}
		if to == nil {
			lines[value.Line-1] = nil
		} else {
			lines[value.Line-1] = append(append(bytes.Clone(line[:value.Column-1]), *to...), line[end:]...)
		}
	}
	out = bytes.Join(lines, nil)
	return out, was, holds(out, to)
}

// edgedOf finds modules.edged, one key per line.
func edgedOf(text []byte) (*yaml.Node, error) {
	var doc yaml.Node
	err := yaml.Unmarshal(text, &doc)
	if err == nil {
		err = doc.Decode(new(map[string]any)) // a key twice
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errByHand, err)
	}
	at := &doc
	if doc.Kind == yaml.DocumentNode {
		at = doc.Content[0]
	}
	for _, name := range []string{"modules", "edged"} {
		_, at = child(at, name)
		if at == nil || at.Kind != yaml.MappingNode || len(at.Content) == 0 {
			return nil, fmt.Errorf("it %w: it has no modules.edged", errByHand)
		}
	}
	if at.Style&yaml.FlowStyle != 0 {
		return nil, fmt.Errorf("line %d: modules.edged %w: it is written in braces", at.Line, errByHand)
	}
	if _, name := child(at, "customInterfaceName"); name != nil && name.Value != "" {
		return nil, fmt.Errorf("line %d: modules.edged.customInterfaceName overrules nodeIP: remove it", name.Line)
	}
	return at, nil
}

// child finds a key of a mapping.
func child(of *yaml.Node, name string) (key, value *yaml.Node) {
	if of.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(of.Content); i += 2 {
		if of.Content[i].Value == name {
			return of.Content[i], of.Content[i+1]
		}
	}
	return nil, nil
}

// holds reads what is about to be written.
func holds(text []byte, want *string) error {
	edged, err := edgedOf(text)
	if err != nil {
		return err
	}
	_, value := child(edged, "nodeIP")
	if (value == nil) != (want == nil) || want != nil && value.Value != *want {
		return fmt.Errorf("modules.edged.nodeIP %w", errByHand)
	}
	return nil
}

// editEdgeCore sets its nodeIP and keeps a copy of what it was. It reports whether that changed anything.
func (i *installer) editEdgeCore(address string) (bool, error) {
	text, err := os.ReadFile(i.Path(edgeCore))
	if err != nil {
		return false, err
	}
	out, was, err := withNodeIP(text, &address)
	if err != nil {
		return false, fmt.Errorf("%s: %w", edgeCore, err)
	}
	if bytes.Equal(out, text) {
		i.Say("as is    %s", edgeCore)
		return false, nil
	}
	if i.rec.EdgeCore == nil {
		if err := i.writeLike(edgeCoreBackup, text); err != nil {
			return false, err
		}
		i.rec.EdgeCore = &edgeCoreEdit{Was: was}
	}
	i.rec.EdgeCore.Set = address
	if err := i.save(); err != nil { // before the file, as everywhere
		return false, err
	}
	if err := i.writeLike(edgeCore, out); err != nil {
		return false, err
	}
	i.Say("wrote    %s: modules.edged.nodeIP: %s (before: %s)", edgeCore, address, edgeCoreBackup)
	return true, nil
}

// restoreEdgeCore takes the edit back, unless it has another address by now. It reports whether that changed
// anything.
func (i *installer) restoreEdgeCore() (bool, error) {
	edit := i.rec.EdgeCore
	if edit == nil {
		return false, nil
	}
	text, err := os.ReadFile(i.Path(edgeCore))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	changed := false
	if out, now, err := withNodeIP(text, edit.Was); err != nil || now == nil || *now != edit.Set {
		i.Say("kept     %s (modules.edged.nodeIP is not what was written; before: %s)", edgeCore, edgeCoreBackup)
	} else if err := i.writeLike(edgeCore, out); err != nil {
		return false, err
	} else if changed = true; edit.Was == nil {
		i.Say("wrote    %s: without modules.edged.nodeIP", edgeCore)
	} else {
		i.Say("wrote    %s: modules.edged.nodeIP: %s", edgeCore, *edit.Was)
	}
	if changed {
		if err := os.Remove(i.Path(edgeCoreBackup)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	i.rec.EdgeCore = nil
	return changed, i.save()
}

// writeLike writes a file with the permissions of edgecore's configuration, which holds a token.
func (i *installer) writeLike(path string, data []byte) error {
	info, err := os.Stat(i.Path(edgeCore))
	if err != nil {
		return err
	}
	if err := durable.WriteFile(i.Path(path), data, info.Mode().Perm()); err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return os.Chown(i.Path(path), int(st.Uid), int(st.Gid))
	}
	return nil
}

// edgeCoreFits tries an edit without writing. The error may wrap errByHand.
func (i *installer) edgeCoreFits(address string) error {
	info, err := os.Lstat(i.Path(edgeCore))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it %w: it is not a regular file", errByHand)
	}
	text, err := os.ReadFile(i.Path(edgeCore))
	if err == nil {
		_, _, err = withNodeIP(text, &address)
	}
	return err
}
