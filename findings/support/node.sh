#!/usr/bin/env bash
# Runs the JavaScript module on standard input with these packages of npm, in a temporary folder.
set -euo pipefail
support=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-fund --no-audit --prefix "$folder" "$@"
cp "$support"/*.mjs "$folder"
cat >"$folder/program.mjs"
cd "$folder"
timeout 120 node program.mjs
