package host

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// findTable returns a table of family inet, nil when there is none.
func findTable(c *nftables.Conn, name string) (*nftables.Table, error) {
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range all {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, nil
}

// oursNFT reports whether a table with one of our names is ours: it has a chain of
// ours, or none at all.
func oursNFT(c *nftables.Conn, t *nftables.Table) bool {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false
	}
	ours := map[string][]string{guardTable: {chainPods, chainTunnel}, snatTable: {snatChain}}[t.Name]
	others := false
	for _, chain := range all {
		if chain.Table.Name != t.Name {
			continue
		}
		for _, name := range ours {
			if chain.Name == name {
				return true
			}
		}
		others = true
	}
	return !others
}

// removeTable deletes a table of family inet, if it is there and ours.
func removeTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return nil // no nf_tables, so no table
	}
	t, err := findTable(c, name)
	if t == nil || err != nil || !oursNFT(c, t) {
		return nil
	}
	c.DelTable(t)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", name, err)
	}
	return nil
}
