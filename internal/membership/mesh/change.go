package mesh

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// Change is what became of the members between two plans. One that changed is in both lists.
type Change struct{ Gone, Come []Node }

// Empty reports whether nothing changed.
func (c Change) Empty() bool { return len(c.Gone)+len(c.Come) == 0 }

// Diff says what has to go and to come so that before becomes after; their order does not matter, and no name is in one of
// them twice. It compares each node with the one at its place. That is fast where a source keeps what did not change, and
// the order.
func Diff(before, after []Node) Change {
	switch {
	case len(before) == 0:
		return Change{Come: after}
	case len(after) == 0:
		return Change{Gone: before}
	case len(before) == len(after) && &before[0] == &after[0]:
		return Change{}
	}
	var c Change
	i, j := 0, 0
	for i < len(before) && j < len(after) {
		if m := min(manyNodes, len(before)-i, len(after)-j); m == manyNodes && bytes.Equal(words(before[i:i+m]), words(after[j:j+m])) {
			i, j = i+m, j+m
			continue
		}
		b, a := &before[i], &after[j]
		if b.equal(a) {
			i, j = i+1, j+1
			continue
		}
		come := j+1 < len(after) && b.equal(&after[j+1])
		gone := i+1 < len(before) && a.equal(&before[i+1])
		if order := strings.Compare(b.Name, a.Name); !come && !gone { // several together, in a list that is in order
			come, gone = order >= 0, order <= 0
		}
		if come {
			c.Come = append(c.Come, *a)
			j++
		}
		if gone {
			c.Gone = append(c.Gone, *b)
			i++
		}
	}
	c.Gone, c.Come = append(c.Gone, before[i:]...), append(c.Come, after[j:]...)
	c.cancel()
	return c
}

// manyNodes is how many nodes are compared in one go.
const manyNodes = 64

// words is the memory of nodes: strings and lists that are at the same place are the same. That is a third of the time that
// equal takes for each node.
func words(n []Node) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(n))), len(n)*int(unsafe.Sizeof(Node{})))
}

// cancel drops the nodes that only have another place.
func (c *Change) cancel() {
	if len(c.Gone) == 0 || len(c.Come) == 0 {
		return
	}
	gone := make(map[string]*Node, len(c.Gone))
	for i := range c.Gone {
		gone[c.Gone[i].Name] = &c.Gone[i]
	}
	same := map[string]bool{}
	for i := range c.Come {
		if n := &c.Come[i]; gone[n.Name] != nil && gone[n.Name].equal(n) {
			same[n.Name] = true
		}
	}
	moved := func(n Node) bool { return same[n.Name] }
	if len(same) > 0 {
		c.Gone, c.Come = slices.DeleteFunc(c.Gone, moved), slices.DeleteFunc(c.Come, moved)
	}
}

// Share has the nodes of after that are as they were use the memory of before, so that Diff compares them fast.
func Share(before, after []Node) {
	i := 0
	for j := range after {
		for k := i; k < min(i+3, len(before)); k++ { // a few may have gone
			if before[k].equal(&after[j]) {
				after[j], i = before[k], k+1
				break
			}
		}
		if i < len(before) && before[i].Name == after[j].Name {
			i++ // it changed
		}
	}
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && n.PeerID == o.PeerID && equalLists(n.PodCIDRs, o.PodCIDRs) && n.Site == o.Site &&
		(n.Labels == nil && o.Labels == nil || maps.Equal(n.Labels, o.Labels)) && equalLists(n.NodeIPs, o.NodeIPs) && n.Unreported == o.Unreported
}

// equalLists does not look into lists that are the same memory, as those of unchanged nodes mostly are.
func equalLists[E comparable](a, b []E) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// history is which plan a Plan was made from. Each has an address of its own, which is compared and nothing else.
type history struct {
	now, from *struct{ _ byte }
	change    Change // since from
}

// Since says what became of the members since q. It costs nothing if p was made from q.
func (p Plan) Since(q Plan) Change {
	switch h := p.history; {
	case h.now != nil && h.now == q.history.now:
		return Change{}
	case h.from != nil && h.from == q.history.now:
		return h.change
	}
	return Diff(q.Nodes, p.Nodes)
}
