#!/bin/sh
# Counts the lines of production code: Go that is neither blank nor a comment, by package
# and in all. Tests do not count: *_test.go, what lies below test/, and packages named …test; nor do generated files.
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.go' | grep -v '_test\.go$' | grep -Ev '^test/|test/[^/]*\.go$' | while read -r file; do
	! head -n 1 "$file" | grep -q '^// Code generated ' || continue
	printf '%s %s\n' "$(dirname "$file")" "$(grep -Evc '^[[:space:]]*(//.*)?$' "$file" || true)"
done | awk '
	{ lines[$1] += $2; all += $2 }
	END {
		for (package in lines) printf "%6d %s\n", lines[package], package | "sort -k2"
		close("sort -k2")
		printf "%6d in all\n", all
	}'
