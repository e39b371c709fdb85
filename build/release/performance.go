package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// performancePage shows the figures that `make bench` measured.
const performancePage = "docs/performance.md"

// measuredOn is the line of the page that names the oldest figures; test/bench/report writes it.
var measuredOn = regexp.MustCompile(`(?m)^Measured on version (\S+) at commit (\S+), ([0-9-]+)\.$`)

// performance refuses figures that were measured on an earlier version than the one that is released.
func (o options) performance() error {
	page, err := os.ReadFile(filepath.Join(o.repo, performancePage))
	if err != nil {
		return err
	}
	const remedy = "run `make bench` on a quiet machine and commit the page, or build a draft with DRAFT=1 (--draft)"
	m := measuredOn.FindStringSubmatch(string(page))
	if m == nil {
		return fmt.Errorf("%s does not say on which version its figures were measured: %s", performancePage, remedy)
	}
	if older(m[1], o.number()) {
		return fmt.Errorf("%s shows figures of version %s (commit %s, %s), which is older than %s: %s",
			performancePage, m[1], m[2], m[3], o.number(), remedy)
	}
	return nil
}

// older compares versions of the form 1.2.3; what is not a number counts as 0.
func older(a, b string) bool {
	parts := func(v string) (n [3]int) {
		for i, text := range strings.SplitN(v, ".", len(n)) {
			n[i], _ = strconv.Atoi(text)
		}
		return n
	}
	x, y := parts(a), parts(b)
	for i := range x {
		if c := cmp.Compare(x[i], y[i]); c != 0 {
			return c < 0
		}
	}
	return false
}
