package read

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// groups are the PolicyGroups that were read, by group and chunk. The last chunk of a group stays, whatever is deleted: its members
// count while a policy needs it, as some of those that there may be.
type groups map[string]map[int]*api.PolicyGroup

func (g groups) take(n kube.News, needed map[string]bool, selector string) {
	listed := map[string]map[int]bool{}
	for _, o := range n.List {
		if x, ok := o.(*api.PolicyGroup); ok && needed[x.Spec.Group] {
			if listed[x.Spec.Group] == nil {
				listed[x.Spec.Group] = map[int]bool{}
			}
			listed[x.Spec.Group][x.Spec.Chunk] = true
			g.put(x)
		}
	}
	for id, chunks := range listed {
		maps.DeleteFunc(g[id], func(i int, _ *api.PolicyGroup) bool { return n.Proved && !chunks[i] })
	}
	for id := range needed {
		if n.All && n.Proved && listed[id] == nil && strings.Contains(selector, id) {
			g.part(id)
		}
	}
	x, ok := n.Event.Object.(*api.PolicyGroup)
	switch {
	case !ok, !needed[x.Spec.Group]: // a cache that ignores selectors
	case n.Event.What != client.Deleted:
		g.put(x)
	case len(g[x.Spec.Group]) > 1:
		delete(g[x.Spec.Group], x.Spec.Chunk)
	default:
		g.part(x.Spec.Group)
	}
}

// part notes that what is known of a group is not all of it.
func (g groups) part(id string) {
	for i, x := range g[id] {
		c := *x
		c.Spec.Chunks = api.MaxChunks + 1
		g[id][i] = &c
	}
}

func (g groups) put(x *api.PolicyGroup) {
	if g[x.Spec.Group] == nil {
		g[x.Spec.Group] = map[int]*api.PolicyGroup{}
	}
	if old := g[x.Spec.Group][x.Spec.Chunk]; old != nil && old.Meta.UID == x.Meta.UID && versionOf(old) > versionOf(x) {
		return // a cache that lags behind
	}
	maps.DeleteFunc(g[x.Spec.Group], func(_ int, c *api.PolicyGroup) bool { return c.Spec.Chunks > api.MaxChunks }) // it is made again
	g[x.Spec.Group][x.Spec.Chunk] = x
}

func versionOf(x *api.PolicyGroup) uint64 {
	n, _ := strconv.ParseUint(x.Meta.ResourceVersion, 10, 64)
	return n
}

// keep forgets all but these.
func (g groups) keep(needed map[string]bool) {
	maps.DeleteFunc(g, func(id string, _ map[int]*api.PolicyGroup) bool { return !needed[id] })
}

// members are a group's; complete reports whether all of its chunks are known. A chunk that states another selector is another group's, whose
// name is the same by chance or on purpose.
func (g groups) members(id, selector string) (out []policy.Member, complete bool) {
	chunks := slices.DeleteFunc(slices.Collect(maps.Values(g[id])), func(c *api.PolicyGroup) bool { return c.Spec.Selector != "" && c.Spec.Selector != selector })
	out, err := podgroups.Members(chunks)
	return out, err == nil && len(chunks) > 0 && !slices.ContainsFunc(chunks, func(c *api.PolicyGroup) bool { return c.Spec.Chunks > len(chunks) })
}

// few is up to how many names of groups one watch reads, two of each. More are read by the first digit of their names, so that another one has a sixteenth
// of them sent again.
const few = 128

// groupKinds are the kinds to follow for groups.
func groupKinds(needed map[string]bool) (out []api.Kind) {
	parts := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(needed)) {
		part := ""
		if len(needed) > few {
			part = id[:1]
		}
		parts[part] = append(parts[part], id)
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		out = append(out, api.PolicyGroups(parts[part]...))
	}
	return out
}
