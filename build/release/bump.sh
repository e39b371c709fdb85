#!/usr/bin/env bash
# Begins the next version: build/release/bump.sh VERSION, of the form v1.2.3. The chart, what is rendered from it, and every
# page and command that names images, packages or archives say it then (TestOneVersion), and CHANGELOG.md has a section.
set -euo pipefail
cd "$(dirname "$0")/../.."
new=${1-}
[[ $new =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "bump: VERSION is '$new', not of the form v1.2.3: make bump VERSION=…" >&2; exit 2; }
new=${new#v}
old=$(sed -n 's/^version: //p' manifests/edgemesh/Chart.yaml)
[ "$old" != "$new" ] || { echo "bump: the chart says $new already" >&2; exit 2; }
[ "$(printf '%s\n' "$old" "$new" | sort -V | tail -1)" = "$new" ] || { echo "bump: $new is older than $old, the chart's version" >&2; exit 2; }
dots=${old//./\\.}
# The forms that TestOneVersion looks for, in test/manifests/release_test.go.
git grep -lE 'edgemesh|VERSION=' -- README.md CONTRIBUTING.md Makefile agent docs manifests build |
  grep -v -e measurements -e '_test\.go$' -e '^build/release/bump.sh$' |
  xargs sed -Ei "s/(edgemesh-(agent|relay):|edgemesh-(chart|manifests)-|edgemesh_|\bTAG=|\bversion=|VERSION=v|tag -s v)$dots\b/\1$new/g"
sed -i "s/^version: $dots\$/version: $new/; s/^appVersion: \"$dots\"\$/appVersion: \"$new\"/" manifests/edgemesh/Chart.yaml
grep -q "^## \[$dots\] - unreleased" CHANGELOG.md && echo "bump: note that CHANGELOG.md calls $old unreleased" >&2
grep -q "^## \[${new//./\\.}\]" CHANGELOG.md || sed -i "0,/^## \[/s//## [$new] - unreleased\n\n### Added\n\n&/" CHANGELOG.md
make --no-print-directory manifests reference
go test -count=1 -run 'TestOneVersion' ./test/manifests
git --no-pager diff --stat
echo "from $old to $new: look at the diff, and commit"
