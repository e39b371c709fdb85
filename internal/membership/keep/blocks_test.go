package keep_test

import (
	"slices"
	"testing"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/kubetest"
)

// A node has what its plugin gave it inside the cluster's ranges; before that is known,
// what it had.
func TestChoose(t *testing.T) {
	var read keep.Blocks
	read.Add(kubetest.BlockAffinity("10.244.90.64/26", "a", "confirmed"))
	read.Add(kubetest.BlockAffinity("10.244.90.0/26", "a", "confirmed"))
	read.Add(kubetest.BlockAffinity("10.244.91.0/26", "a", "pending"))
	read.Add(kubetest.BlockAffinity("192.168.7.0/26", "a", "confirmed"))
	read.Add(kubetest.CiliumNode("a", "10.244.90.0/26", "no prefix"))
	all, failing := read, read
	all.Complete, failing.Failing = true, true
	for name, c := range map[string]struct {
		blocks keep.Blocks
		node   string
		had    []string
		want   []string
		ok     bool
	}{
		"known":                        {all, "a", nil, []string{"10.244.90.0/26", "10.244.90.64/26"}, true},
		"no plugin tells":              {all, "b", []string{"10.244.2.0/24"}, nil, false},
		"not known yet":                {read, "a", nil, nil, true},
		"not known yet, had one":       {read, "a", []string{"10.244.1.0/24"}, []string{"10.244.1.0/24"}, true},
		"cannot be known":              {failing, "a", nil, nil, false},
		"cannot be known, but had one": {failing, "a", []string{"10.244.1.0/24"}, []string{"10.244.1.0/24"}, true},
	} {
		got, ok := c.blocks.Choose(kubetest.Prefixes(t, "10.244.0.0/16"), c.node, kubetest.Prefixes(t, c.had...))
		if !slices.Equal(got, kubetest.Prefixes(t, c.want...)) || ok != c.ok {
			t.Errorf("%s: %v %v, want %v %v", name, got, ok, c.want, c.ok)
		}
	}
}
