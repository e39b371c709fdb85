package podgroups

import (
	"fmt"
	"hash/fnv"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/membership/kube/api"
)

// full is above how many members a chunk has on average that there are twice as many, and sparse below how many that there are half as
// many: far enough from each other that a group does not change its chunks to and fro.
const (
	full   = api.MaxChunk * 9 / 10
	sparse = api.MaxChunk / 4
)

// MaxMembers are the most that a group may have: of more, the last ones are left out.
const MaxMembers = api.MaxChunk * api.MaxChunks

// Chunks are the PolicyGroups of a group, by one of its names, which had before of them (0: none). A member's chunk depends on itself and on how many there
// are: one pod changes one chunk, and twice as many chunks leave half of the members where they are. How many there are depends on how
// many members there are alone: who chooses addresses so that they meet in one chunk fills the next ones.
func Chunks(id, selector string, members []policy.Member, before int) []*api.PolicyGroup {
	members = members[:min(len(members), MaxMembers)]
	n := min(max(before, 1), api.MaxChunks)
	for n > 1 && len(members) < n*sparse {
		n /= 2
	}
	for n < api.MaxChunks && len(members) > n*full {
		n = min(2*n, api.MaxChunks)
	}
	parts := make([][]string, n)
	for _, m := range members {
		text := m.String()
		at := place(text, n)
		for len(parts[at]) == api.MaxChunk {
			at = (at + 1) % n
		}
		parts[at] = append(parts[at], text)
	}
	out := make([]*api.PolicyGroup, n)
	for i, part := range parts {
		out[i] = &api.PolicyGroup{
			Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "PolicyGroup"},
			Meta: api.Meta{Name: fmt.Sprintf("%s-%d", id, i), Labels: map[string]string{api.GroupLabel: id}},
			Spec: api.PolicyGroupSpec{Group: id, Chunk: i, Chunks: n, Members: append([]string{}, part...), Selector: selector},
		}
	}
	return out
}

// place is the chunk of a member among n: the one with the highest hash of both (rendezvous hashing).
func place(m string, n int) (at int) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(m))
	own, best := h.Sum64(), uint64(0)
	for i := range n {
		if x := mix(own ^ mix(uint64(i)+1)); x >= best {
			at, best = i, x
		}
	}
	return at
}

// mix is the finalizer of SplitMix64: each bit of x changes half of the result's.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Members are those of some chunks of one group, in order. The error is about the first that cannot be read, which is left out.
func Members(chunks []*api.PolicyGroup) (out []policy.Member, failed error) {
	for _, c := range chunks {
		for _, text := range c.Spec.Members {
			m, err := policy.ParseMember(text)
			if err != nil {
				if failed == nil {
					failed = fmt.Errorf("PolicyGroup %s: members: %w", c.Meta.Name, err)
				}
				continue
			}
			out = append(out, m)
		}
	}
	return policy.Sorted(out), failed
}
