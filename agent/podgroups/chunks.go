package podgroups

import (
	"fmt"
	"hash/fnv"

	"edgemesh/agent/policy"
	"edgemesh/internal/membership/kube/api"
)

// sparse is below how many members a chunk has on average that there are half as many: a quarter of api.MaxChunk, so that a group does
// not change its chunks to and fro.
const sparse = api.MaxChunk / 4

// Chunks are the PolicyGroups of a group, which had before of them (0: none). A member's chunk depends on its address and on how many
// there are: one pod changes one chunk, and twice as many chunks leave half of the members where they are.
func Chunks(id string, members []policy.Member, before int) []*api.PolicyGroup {
	n := max(before, 1)
	for n > 1 && len(members) < n*sparse {
		n /= 2
	}
	for {
		parts := make([][]string, n)
		most := 0
		for _, m := range members {
			at := place(m, n)
			parts[at] = append(parts[at], m.String())
			most = max(most, len(parts[at]))
		}
		if most > api.MaxChunk {
			n *= 2
			continue
		}
		out := make([]*api.PolicyGroup, n)
		for i, part := range parts {
			out[i] = &api.PolicyGroup{
				Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "PolicyGroup"},
				Meta: api.Meta{Name: fmt.Sprintf("%s-%d", id, i), Labels: map[string]string{api.GroupLabel: id}},
				Spec: api.PolicyGroupSpec{Group: id, Chunk: i, Chunks: n, Members: append([]string{}, part...)},
			}
		}
		return out
	}
}

// place is the chunk of a member among n: the one with the highest hash of both (rendezvous hashing).
func place(m policy.Member, n int) (at int) {
	h := fnv.New64a()
	h.Write(m.Addr.AsSlice())
	address, best := h.Sum64(), uint64(0)
	for i := range n {
		if x := mix(address ^ mix(uint64(i)+1)); x >= best {
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
