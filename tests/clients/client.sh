#!/usr/bin/env bash
# client.sh NAME URL [COUNT]: sends so many requests (one, unless it says otherwise) by the client of
# this name, one after the other, and fails if one of them fails.
#
# A client is configured as its documentation says where it does not retry by itself.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
clients=${CARGO_TARGET_DIR:-$folder/../../target}/clients
name=$1 url=$2 count=${3:-1}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one_by_one() {
  for _ in $(seq "$count"); do "$@"; done
}

case $name in
curl) one_by_one curl -sS --fail "$url" ;;
curl-retry) one_by_one curl -sS --fail --retry 3 -o "$scratch/body" "$url" ;;
wget) one_by_one wget -q --server-response --content-on-error -O "$scratch/body" "$url" ;;
wget-retry) one_by_one wget -q --server-response --retry-on-http-error=429,503 -O "$scratch/body" "$url" ;;
pip)
  one_by_one "$clients/python/bin/pip" --disable-pip-version-check --no-cache-dir --no-input \
    index versions --quiet --index-url "$url/simple" a-package
  ;;
npm)
  export npm_config_registry=$url npm_config_cache=$scratch npm_config_update_notifier=false
  one_by_one npm view --loglevel=error a-package version
  ;;
cargo)
  mkdir "$scratch/home"
  printf '[source.crates-io]\nreplace-with = "it"\n[source.it]\nregistry = "sparse+%s/index/"\n' \
    "$url" >"$scratch/home/config.toml"
  CARGO_HOME=$scratch/home one_by_one cargo info a-package --registry crates-io
  ;;
git) one_by_one git ls-remote "$url/a.git" ;;
py-*) "$clients/python/bin/python" -B "$folder/clients.py" "${name#py-}" "$url" "$count" ;;
js-*)
  node --preserve-symlinks-main "$clients/clients.mjs" "${name#js-}" "$url" "$count"
  ;;
*)
  echo "client.sh: there is no client $name" >&2
  exit 2
  ;;
esac
