#!/usr/bin/env bash
# Runs govulncheck over the modules of go.work: build/vuln.sh GO TOOL@VERSION. It fails if code that is called has a known
# vulnerability, and also if the database cannot be read: nothing was checked then.
# GOVULNDB is the database's URL (default https://vuln.go.dev), such as file:///path/of/a/copy.
set -euo pipefail
cd "$(dirname "$0")/.."
go=$1 tool=$2 db=${GOVULNDB:-https://vuln.go.dev}

case $db in
  http*) read=(curl -sSfm 20 "$db/index/db.json") ;;
  file://*) read=(cat "${db#file://}/index/db.json") ;;
  *) echo "make vuln: GOVULNDB=$db is neither an http(s) nor a file URL" >&2; exit 2 ;;
esac
if ! why=$("${read[@]}" 2>&1); then
  echo "make vuln: NOT CHECKED: the vulnerability database at $db cannot be read: $why" >&2
  echo "Run this where $db is reachable, or set GOVULNDB to the URL of a copy (file:///DIRECTORY also works)." >&2
  exit 3
fi
echo "database: $why"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
GOBIN=$bin "$go" install "$tool"
"$bin/govulncheck" -db "$db" -test=false work
