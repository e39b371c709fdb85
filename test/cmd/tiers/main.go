// Command tiers lists tests by their tier, as the sources declare it (test/tier), for build/test.sh and for readers.
//
//	tiers packages all   packages whose tests are all of this tier: ./test/kubeapi
//	tiers tests all      tests of this tier in other packages: ./cni TestContainerd
//	tiers reason all     why a test of this tier is not run in a former one
//	tiers                how many tests each tier has
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"edgemesh/test/tier"
	"edgemesh/test/tiers"
)

func main() {
	if err := list(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(2)
	}
}

func list(args []string) error {
	dirs, err := tiers.Tree(".")
	if err != nil {
		return err
	}
	if len(args) == 0 {
		var n [len(tier.Names)]int
		for _, d := range dirs {
			for _, at := range d.Tests {
				n[at]++
			}
		}
		for at, name := range tier.Names {
			fmt.Printf("%-5s %d tests\n", name, n[at])
		}
		return nil
	}
	if len(args) != 2 || !slices.Contains(tier.Names[:], args[1]) || !slices.Contains([]string{"packages", "tests", "reason"}, args[0]) {
		return fmt.Errorf("usage: tiers [packages|tests|reason test|all|long], in the repository's root")
	}
	want := tier.Tier(slices.Index(tier.Names[:], args[1]))
	if args[0] == "reason" {
		fmt.Println(tier.Reasons[want])
		return nil
	}
	for _, d := range dirs {
		own := tier.OfTest
		if d.Whole {
			own = d.Package
		}
		if args[0] == "packages" {
			if own == want {
				fmt.Println("./" + d.Path)
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(d.Tests)) {
			if d.Tests[name] == want && own != want {
				fmt.Println("./"+d.Path, name)
			}
		}
	}
	return nil
}
