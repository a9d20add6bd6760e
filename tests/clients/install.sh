#!/usr/bin/env bash
# Installs the clients of this folder, at the versions of its lock files, below the folder of what is
# built. Does nothing if that is done, and says so if Node.js is too old for them.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
clients=$(realpath -m "${CARGO_TARGET_DIR:-$folder/../../target}")/clients
cd "$folder"
node=$(node --version 2>/dev/null || echo none)
major=${node#v}
if ! [ "${major%%.*}" -ge 20 ] 2>/dev/null; then
  echo "NOT TESTED: real clients need Node.js 20 or later, and there is $node." >&2
  exit 0
fi
# By this name, Node.js finds the packages that lie beside it. Checkouts may share the folder.
mkdir -p "$clients"
ln -sfn "$PWD/clients.mjs" "$clients/clients.mjs"
pins=$(cat requirements.txt package-lock.json | sha256sum)
[ "$(cat "$clients/installed" 2>/dev/null)" != "$pins" ] || exit 0

rm -rf "$clients"
mkdir -p "$clients"
python3 -m venv "$clients/python"
"$clients/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
  -r requirements.txt
cp package.json package-lock.json .npmrc "$clients"
npm ci --silent --ignore-scripts --prefix "$clients"
ln -sfn "$PWD/clients.mjs" "$clients/clients.mjs"
echo "$pins" >"$clients/installed"
