// Package tier says to which of three tiers a test belongs, in one way for all of them: by a call of this package.
//
//	test  no call: unit, fuzz-seed and namespace tests; `make test`
//	all   All(t): what is slow, or needs a Kubernetes program; `make test-all`
//	long  Long(t): suites with a target of their own, as `make e2e`
//
// Package(OfAll) or Package(OfLong), once in a package, puts all of its tests there: `make test` does not compile them. The suites set
// EDGEMESH_TIER; unset it is test. Package tiers reads the declarations, test/house holds that each test has one tier.
package tier

import (
	"fmt"
	"os"
	"testing"
)

// Tier is one of the three; each includes those before.
type Tier int

// The tiers.
const (
	OfTest Tier = iota
	OfAll
	OfLong
)

// Var is the variable of the environment that names the tier of a run.
const Var = "EDGEMESH_TIER"

// Names are the tiers' names, as in Var.
var Names = [...]string{OfTest: "test", OfAll: "all", OfLong: "long"}

// Reasons begin what a test says that another tier runs.
var Reasons = [...]string{OfAll: "tier all: make test-all runs it", OfLong: "tier long: a target of its own runs it (make e2e …)"}

// run is the tier of this run.
func run() Tier {
	name := os.Getenv(Var)
	for t, n := range Names {
		if name == n {
			return Tier(t)
		}
	}
	if name != "" {
		panic(fmt.Sprintf("%s: %q is not a tier: use test, all or long", Var, name))
	}
	return OfTest
}

// All skips t in runs of tier test. It is the first statement of a test.
func All(t testing.TB) {
	t.Helper()
	skip(t, OfAll)
}

// Long skips t unless the run is of tier long. It is the first statement of a test, or of a subtest.
func Long(t testing.TB) {
	t.Helper()
	skip(t, OfLong)
}

func skip(t testing.TB, at Tier) {
	t.Helper()
	if run() < at {
		t.Skip(Reasons[at])
	}
}

// IsLong reports whether the run is of tier long, where some tests do more, or judge a figure.
func IsLong() bool { return run() >= OfLong }

// Package declares the tier of all tests of a package: `var _ = tier.Package(tier.OfAll)` in one of its test files. It skips nothing, so that
// go test runs them by hand.
func Package(t Tier) Tier { return t }
