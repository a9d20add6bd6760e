#!/usr/bin/env bash
# Installs the clients of this folder, at the versions of its lock files, below the folder of what is
# built. Does nothing if that is done, or if a tool is missing.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
clients=$(realpath -m "${CARGO_TARGET_DIR:-$folder/../../target}")/clients
cd "$folder"
pins=$(cat requirements.txt package-lock.json | sha256sum)
[ "$(cat "$clients/installed" 2>/dev/null)" != "$pins" ] || exit 0

rm -rf "$clients"
mkdir -p "$clients"
python3 -m venv "$clients/python"
"$clients/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
  -r requirements.txt
cp package.json package-lock.json .npmrc "$clients"
npm ci --silent --ignore-scripts --prefix "$clients"
# By this name, Node.js finds the packages that lie beside it.
ln -s "$PWD/clients.mjs" "$clients/clients.mjs"
echo "$pins" >"$clients/installed"
