#!/usr/bin/env bash
# Ends the cluster when whoever holds the other end of standard input dies.
. "$(dirname "$0")/lib.sh"
trap '' INT HUP
read -r line || true
[ "$line" = keep ] || exec "$SCRIPTS/down.sh"
